"""A web application: it is written into a sandbox and started, and its preview is opened."""

import subprocess
import time

from e2b import Sandbox

APP = """
import http.server

class App(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        page = f"<h1>Hello from {self.path}</h1>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

http.server.ThreadingHTTPServer(("", 3000), App).serve_forever()
"""


def opened(address, patience=60):
    """What a browser gets; an application that has just been started may not listen yet."""
    until = time.monotonic() + patience
    while True:
        got = subprocess.run(["curl", "-fsS", address], capture_output=True, text=True, check=False)
        if got.returncode == 0 or time.monotonic() > until:
            return got.stdout or got.stderr
        time.sleep(0.2)


with Sandbox.create() as sandbox:
    sandbox.files.write("/srv/app.py", APP)
    sandbox.commands.run("python3 app.py", cwd="/srv", background=True, timeout=0)
    preview = f"http://{sandbox.get_host(3000)}"
    print(opened(f"{preview}/"))
    print(opened(f"{preview}/about"))
