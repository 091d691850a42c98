"""A server in the background: another program finds it, asks it, and ends it."""

import time

from e2b import CommandExitException, Sandbox

SERVER = "python3 -u -m http.server 8000 --directory /srv"
ASK = """python3 -c '
import urllib.request
print(urllib.request.urlopen("http://localhost:8000/greeting").read().decode())'"""


def start():
    """Starts the server, and leaves: the sandbox outlives the program's connection."""
    sandbox = Sandbox.create(metadata={"has": "a server"})
    sandbox.files.write("/srv/greeting", "good morning")
    sandbox.commands.run(SERVER, background=True, timeout=0).disconnect()
    return sandbox.sandbox_id


def answer_of(sandbox):
    for _ in range(100):
        try:
            return sandbox.commands.run(ASK).stdout.strip()
        except CommandExitException:
            time.sleep(0.2)
    raise TimeoutError("the server does not answer")


sandbox = Sandbox.connect(start())
print("it answers:", answer_of(sandbox))
[server] = sandbox.commands.list()
print("it runs as:", server.args[-1])
log = []
handle = sandbox.commands.connect(server.pid)
print("ended:", sandbox.commands.kill(server.pid))
try:
    handle.wait(on_stderr=log.append)
except CommandExitException as end:
    print("its end:", end.exit_code)
print("commands left:", len(sandbox.commands.list()))
sandbox.kill()
