"""What E2B's interface costs beside forkd's own, with the Python packages of both and without them.

    overhead.py N       needs E2B's variables, and FORKD_SOCKET; prints a table

The two take turns, and every other time the order is changed. Raw are requests over a connection
that is kept: they show the daemon's own share.
"""

import http.client
import json
import os
import socket
import statistics
import sys
import time
from collections import defaultdict

from e2b_code_interpreter import Sandbox as OfE2b

from forkd_sdk import Client, Sandbox

TRUE = ["/bin/bash", "-l", "-c", "true"]
RAW_TIMES = 5
CODE = json.dumps({"code": "1 + 1"})


class OverSocket(http.client.HTTPConnection):
    """A connection to the daemon's socket."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ["FORKD_SOCKET"])


def raw(connection, method, path, body=None, headers=None):
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    said = answer.read()
    if answer.status >= http.client.MULTIPLE_CHOICES:
        raise RuntimeError(f"{path}: {answer.status} {said!r}")


class Rows:
    """Milliseconds of both, by call."""

    def __init__(self):
        self.all = defaultdict(list)

    def pair(self, call, of_e2b, own):
        """Does both, in turns; gives what they return."""
        acts = [of_e2b, own]
        turn = -1 if len(self.all[call]) % 2 else 1
        done = [timed(act) for act in acts[::turn]][::turn]
        self.all[call].append([millis for millis, _ in done])
        return [value for _, value in done]

    def table(self):
        yield "| call | times | E2B's, ms | own, ms | difference, ms |\n|---|---|---|---|---|"
        for call, pairs in self.all.items():
            columns = [*zip(*pairs, strict=True), [a - b for a, b in pairs]]
            figures = " | ".join(f"{statistics.median(column):.2f}" for column in columns)
            yield f"| {call} | {len(pairs)} | {figures} |"


def timed(act):
    begin = time.perf_counter()
    value = act()
    return (time.perf_counter() - begin) * 1000, value


def main():
    client, rows, times = Client(), Rows(), int(sys.argv[1])
    e2b = http.client.HTTPConnection(os.environ["E2B_API_URL"].removeprefix("http://"))
    own, key = OverSocket("localhost"), {"X-API-KEY": os.environ["E2B_API_KEY"]}
    kind = {"Content-Type": "application/json"}
    for _ in range(times):
        a, b = rows.pair("create", OfE2b.create, lambda: Sandbox.create("python", client=client))
        rows.pair("first run_code", lambda: a.run_code("1 + 1"), lambda: b.run_code("1 + 1"))
        rows.pair("command", lambda: a.commands.run("true"), lambda: b.commands.run(TRUE))
        of_e2b, of_own = f"/sandboxes/{a.sandbox_id}", f"/v1/sandboxes/{b.id}"
        token = a._envd_access_token
        to = {"E2b-Sandbox-Id": a.sandbox_id, "E2b-Sandbox-Port": "49999", "X-Access-Token": token}
        for _ in range(RAW_TIMES):
            rows.pair(
                "raw: its details",
                lambda: raw(e2b, "GET", of_e2b, None, key),
                lambda: raw(own, "GET", of_own),
            )
            rows.pair(
                "raw: code",
                lambda: raw(e2b, "POST", "/execute", CODE, kind | to),
                lambda: raw(own, "POST", f"{of_own}/eval", CODE, kind),
            )
        rows.pair("kill", a.kill, b.remove)
    for _ in range(max(2, times // 5)):
        a, b = OfE2b.create(), Sandbox.create("python", client=client)
        forks, branch = rows.pair("fork of ten", lambda: a.fork(count=10), lambda: b.branch(10))
        for fork in forks:
            fork.kill()
        branch.remove()
        a.kill()
        b.remove()
    print("\n".join(rows.table()))


main()
