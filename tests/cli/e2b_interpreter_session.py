"""A program for E2B's code interpreter: nothing in it knows of forkd. Prints `done` when all held."""

import http.client
import os
import time
import urllib.parse

from e2b import CommandExitException
from e2b_code_interpreter import Sandbox

PICTURE = """
class Picture:
    def __repr__(self): return "a picture"
    def _repr_png_(self): return b"\\x89PNG" + bytes(100_000)
    def _repr_html_(self): return "<b>\\u2028\\u00e9</b>"
"""

CHART = """
chart = {
    "type": "line", "title": "Speed", "x_label": "Time (s)", "x_unit": "s", "y_label": None,
    "y_unit": None, "x_ticks": [1], "x_tick_labels": ["1"], "x_scale": "linear", "y_ticks": [2],
    "y_tick_labels": ["2"], "y_scale": "linear",
    "elements": [{"label": "up", "points": [[1, 2], [3, 4]]}],
}
class Form:
    def __init__(self, name, form): self.bundle = {f"application/vnd.forkd.{name}+json": form}
    def _repr_mimebundle_(self): return self.bundle
display(Form("chart", chart), Form("table", {"n": [1, 2]}))
"""


# Answers as a code server does, and says where it runs.
SERVER = """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200); self.end_headers()
        line = {"type": "result", "text": f"of {self.path}: {told['code']}", "is_main_result": True}
        self.wfile.write(json.dumps(line).encode() + b"\\n")
    def log_message(self, *said): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 49999), Handler).serve_forever()
"""


def state_and_results(sandbox):
    assert sandbox.run_code("x = 41").results == []
    execution = sandbox.run_code("x += 1\nx")
    assert (execution.text, execution.execution_count) == ("42", 2), execution
    assert sandbox.run_code("'text'").text == "text"
    awaited = sandbox.run_code("import asyncio\nawait asyncio.sleep(0.01, result='slept')")
    assert awaited.text == "slept", awaited
    printed, shown = [], []
    sandbox.run_code(PICTURE)
    execution = sandbox.run_code(
        "import sys\nprint('é')\nprint('err', file=sys.stderr)\ndisplay(Picture())\nPicture()",
        on_stdout=lambda message: printed.append(message.line),
        on_result=shown.append,
    )
    assert "".join(printed) == "é\n" and "".join(execution.logs.stderr) == "err\n", execution.logs
    assert [result.is_main_result for result in execution.results] == [False, True], execution
    for result in shown:
        assert result.html == "<b>\u2028é</b>" and result.png.startswith("iVBORw"[:4]), result
        assert result.text == "a picture", result


def charts_and_tables(sandbox):
    execution = sandbox.run_code(CHART)
    chart = execution.results[0].chart
    assert (chart.type.value, chart.title, chart.x_unit) == ("line", "Speed", "s"), chart
    assert chart.elements[0].points == [(1, 2), (3, 4)], chart.elements
    assert execution.results[1].data == {"n": [1, 2]}, execution.results[1]
    # The image has no IPython: the error says what to do, and the interpreter stays.
    error = sandbox.run_code("!ls").error
    assert error.name == "ModuleNotFoundError" and "pip install ipython" in error.value, error
    assert sandbox.run_code("  indented = 5\n  indented").text == "5"


def errors_and_time(sandbox):
    error = sandbox.run_code("def f():\n    raise ValueError('no')\nf()").error
    assert (error.name, error.value) == ("ValueError", "no") and "in f" in error.traceback, error
    try:
        sandbox.run_code("import time\ntime.sleep(300)", timeout=3)
        raise AssertionError("code whose time is over must raise")
    except Exception as failure:
        assert "imeout" in type(failure).__name__ or "imed out" in str(failure), failure
    begun = time.monotonic()
    assert sandbox.run_code("1 + 1").text == "2", "the code was not interrupted"
    assert time.monotonic() - begun < 60


def contexts(sandbox):
    made = sandbox.create_code_context(cwd="/tmp")
    assert sandbox.run_code("import os\nos.getcwd()", context=made).text == "/tmp"
    assert sandbox.run_code("x", context=made).error.name == "NameError"
    assert made.id in [context.id for context in sandbox.list_code_contexts()]
    sandbox.restart_code_context(made)
    assert sandbox.run_code("os", context=made).error.name == "NameError"
    sandbox.remove_code_context(made)
    assert made.id not in [context.id for context in sandbox.list_code_contexts()]
    told = sandbox.run_code("import os\nos.environ['A']", envs={"A": "for one execution"})
    assert told.text == "for one execution", told
    assert sandbox.run_code("os.environ.get('A')").text is None
    assert sandbox.run_code("os.environ['OF']").text == "the sandbox"


def forks(sandbox):
    context = sandbox.create_code_context()
    sandbox.run_code("word = 'in a context'", context=context)
    for fork in sandbox.fork(count=2, timeout=300):
        child = getattr(fork, "sandbox", fork)
        assert child.run_code("x").text == "42"
        assert child.run_code("x = 7\nword", context=context).text == "in a context"
        child.kill()
    assert sandbox.run_code("x").text == "42"


def server(sandbox):
    sandbox.run_code(
        "import http.server, threading\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers()\n"
        "        self.wfile.write(self.path.encode())\n"
        "    def log_message(self, *said): pass\n"
        "server = http.server.HTTPServer(('127.0.0.1', 3000), Handler)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()"
    )
    # A browser finds `*.localhost` by itself; the C library does not.
    listener = urllib.parse.urlsplit(os.environ["E2B_API_URL"])
    connection = http.client.HTTPConnection(listener.hostname, listener.port, timeout=60)
    host = sandbox.get_host(3000)
    assert host.endswith(f".localhost:{listener.port}"), host
    connection.request("GET", "/page?a=b", headers={"Host": host})
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"/page?a=b")
    connection.request("GET", "/", headers={"Host": sandbox.get_host(3001)})
    answer = connection.getresponse()
    assert answer.status == 502 and b"port is not open" in answer.read()


def own_code_server(sandbox):
    """A code server of the sandbox's own takes the place of the interpreter, while it listens."""
    sandbox.files.write("/tmp/server.py", SERVER)
    handle = sandbox.commands.run("exec python3 /tmp/server.py", background=True, timeout=0)
    until = time.monotonic() + 60
    while sandbox.run_code("x").text != "of /execute: x":
        assert time.monotonic() < until, "code is not passed on"
        time.sleep(0.1)
    [fork] = sandbox.fork(timeout=300)
    child = getattr(fork, "sandbox", fork)
    assert child.run_code("y").text == "of /execute: y", "a fork has the server of its source"
    child.kill()
    handle.kill()
    try:
        handle.wait()
        raise AssertionError("a killed server must raise")
    except CommandExitException:
        pass
    assert sandbox.run_code("x").text == "42", "the interpreter is still there"


def pauses():
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    sandbox = Sandbox.create("base", timeout=300, lifecycle=lifecycle)
    sandbox.run_code("kept = 'kept'")
    sandbox.set_timeout(1)
    until = time.monotonic() + 60
    while sandbox.get_info().state.value != "paused":
        assert time.monotonic() < until, "its end has not paused it"
        time.sleep(0.2)
    assert sandbox.run_code("kept").text == "kept", "a request wakes it"
    sandbox.kill()


def main():
    sandbox = Sandbox.create("base", timeout=900, envs={"OF": "the sandbox"})
    state_and_results(sandbox)
    charts_and_tables(sandbox)
    errors_and_time(sandbox)
    contexts(sandbox)
    forks(sandbox)
    server(sandbox)
    own_code_server(sandbox)
    sandbox.kill()
    pauses()
    print("done")


main()
