"""Each method asks for the right thing and understands the answer, in both shells."""

from __future__ import annotations

import inspect
import io
from collections.abc import AsyncIterator, Callable
from typing import Any

import fake
import httpx
import pytest
from fake import FakeDaemon

from forkd_sdk import (
    AsyncClient,
    AsyncSandbox,
    Client,
    HeaderRule,
    HeaderTransform,
    NetworkPolicy,
    Sandbox,
)

SB = "/v1/sandboxes/sb-1"
PREVIEWED = {**fake.sandbox(), "preview_url": "http://{port}-sb-1.localhost:8890"}
PR = f"{SB}/processes/pr-1"
EXEC = {"stdout": "hi\n", "stderr": "", "exit_code": 0, "timed_out": False}
EVAL = {
    "stdout": "",
    "stderr": "",
    "exit_code": 0,
    "timed_out": False,
    "state_lost": False,
    "result": "3",
}
OPERATION = fake.operation()
ENTRY = {
    "name": "a",
    "path": "/a",
    "kind": "file",
    "size_bytes": 1,
    "mode": "0644",
    "modified_at_unix": 1,
}

MEMBERSHIP = {
    "network": "team",
    "sandbox": "sb-1",
    "host_name": "sb-1.team.forkd.internal",
    "ipv4": "10.43.0.1",
    "ipv6": "fd66:6f72:6b64:1::1",
}
NETWORK = {"name": "team", "created_at_unix": 7, "members": [MEMBERSHIP]}

# Method, route, answer, what is done, what was sent as query or JSON.
KEY = "ed25519:" + "0" * 64
HUB_SNAPSHOT = {
    "reference": "r/a:1@sha256:0",
    "bytes": 3,
    "tag": "t",
    "created_at_unix": 1,
    "ancestors": ["s"],
    "key": KEY,
    "trusted": False,
    "image": "i",
    "mem_size_mib": 64,
    "vcpus": 1,
    "accelerator": "tcg",
    "vmm_version": "7",
    "cpu_model": "max",
    "memory_layers": 2,
    "disk_overlays": 1,
    "problem": "it needs another processor",
}
RULES = {"a.example": [HeaderRule(transform=HeaderTransform(headers={"X": "${secrets.KEY}"}))]}
CASES: list[tuple[str, Any, Callable[[Any], Any], dict[str, Any]]] = [
    ("GET /v1/sandboxes", [], lambda c: c.sandboxes.list(metadata={"a": "b"}), {"metadata.a": "b"}),
    ("POST " + SB + "/branch", fake.snapshot("t"), lambda c: c.s.branch(2, mode="diff", tag="t"),
     {"n": 2, "mode": "diff", "tag": "t", "wait": True}),
    ("POST " + SB + "/branch", fake.snapshot("t"), lambda c: c.s.branch(tag="t", private=True),
     {"n": 0, "tag": "t", "wait": True, "private": True}),
    ("POST " + SB + "/branch", fake.snapshot("t"),
     lambda c: c.s.branch(1, network=NetworkPolicy(allow_internet_access=False)),
     {"n": 1, "wait": True, "network": {"allow_internet_access": False}}),
    ("POST " + SB + "/exec", EXEC,
     lambda c: c.s.commands.run(["ls"], env={"A": "1"}, cwd="/", user="me"),
     {"args": ["ls"], "env": {"A": "1"}, "cwd": "/", "user": "me", "timeout_secs": 60}),
    ("POST " + SB + "/exec", EXEC,
     lambda c: c.s.commands.run("ls | wc", stdin=b"\xff", timeout=0.2),
     {"args": ["/bin/sh", "-c", "ls | wc"], "stdin_base64": "/w==", "timeout_secs": 1}),
    ("POST " + SB + "/eval", EVAL, lambda c: c.s.run_code("1+2", timeout=None),
     {"code": "1+2", "timeout_secs": 86_400}),
    ("POST " + SB + "/pause", fake.sandbox(), lambda c: c.s.pause(), {}),
    ("POST " + SB + "/resume", fake.sandbox(), lambda c: c.s.resume(), {}),
    ("POST " + SB + "/rollback", fake.sandbox(), lambda c: c.s.rollback("t"),
     {"snapshot_tag": "t"}),
    ("GET " + SB + "/network", {"allow_out": ["a.example"]}, lambda c: c.s.network(), {}),
    ("GET " + SB + "/network/log", {"entries": [], "missing": 0},
     lambda c: c.s.network_log(after=7), {"after": "7"}),
    ("PUT " + SB + "/network", fake.sandbox(),
     lambda c: c.s.set_network(NetworkPolicy(deny_out=["198.51.100.7"], rules=RULES)),
     {"deny_out": ["198.51.100.7"],
      "rules": {"a.example": [{"transform": {"headers": {"X": "${secrets.KEY}"}}}]}}),
    ("PUT " + SB + "/network", fake.sandbox(),
     lambda c: c.s.set_network(NetworkPolicy(join=["team"])), {"join": ["team"]}),
    ("GET /v1/networks", [NETWORK], lambda c: c.networks.list(), {}),
    ("POST /v1/networks", NETWORK, lambda c: c.networks.create("team"), {"name": "team"}),
    ("GET /v1/networks/team", NETWORK, lambda c: c.networks.get("team"), {}),
    ("DELETE /v1/networks/team", None, lambda c: c.networks.remove("team"), {}),
    ("PUT /v1/networks/team/members/sb-1", fake.sandbox(networks=[MEMBERSHIP]),
     lambda c: c.s.join("team"), {}),
    ("DELETE /v1/networks/team/members/sb-1", fake.sandbox(), lambda c: c.s.leave("team"), {}),
    ("GET /v1/secrets", [{"name": "KEY", "set_at_unix": 7}], lambda c: c.secrets.list(), {}),
    ("PUT /v1/secrets/KEY", None, lambda c: c.secrets.set("KEY", '{"k": 1}'), {"k": 1}),
    ("DELETE /v1/secrets/KEY", None, lambda c: c.secrets.remove("KEY"), {}),
    ("POST " + SB + "/ports/80/token",
     {"url": "http://h/", "host": "h", "token": "t", "expires_at_unix": 7},
     lambda c: c.s.ports.token(80, ttl=60), {"ttl_secs": 60}),
    ("PUT " + SB + "/network", fake.sandbox(),
     lambda c: c.s.set_network(NetworkPolicy(
         allow_public_traffic=True, public_ports=[80], mask_request_host="localhost:${PORT}")),
     {"allow_public_traffic": True, "public_ports": [80],
      "mask_request_host": "localhost:${PORT}"}),
    ("GET " + SB, PREVIEWED, lambda c: c.s.ports.url(80), {}),
    ("GET " + SB, PREVIEWED, lambda c: c.s.ports.host(80), {}),
    ("DELETE " + SB + "/ports/80/token", None, lambda c: c.s.ports.revoke_tokens(80), {}),
    ("GET " + SB + "/ports", [{"port": 80, "address": "::1"}], lambda c: c.s.ports.list(), {}),
    ("GET " + SB, fake.sandbox(), lambda c: c.s.refresh(), {}),
    ("GET " + SB + "/logs", None, lambda c: c.s.logs(), {}),
    ("POST " + SB + "/processes", fake.process(), lambda c: c.s.commands.start("x", tty=(2, 3)),
     {"args": ["/bin/sh", "-c", "x"], "tty": {"rows": 2, "cols": 3}}),
    ("GET " + SB + "/processes", [fake.process()], lambda c: c.s.commands.list(), {}),
    ("GET " + PR, fake.process(), lambda c: c.s.commands.connect("pr-1"), {}),
    ("POST " + PR + "/signal", None, lambda c: c.p.kill(), {"signal": "KILL"}),
    ("POST " + PR + "/signal", None, lambda c: c.p.send_signal("SIGINT"), {"signal": "INT"}),
    ("POST " + PR + "/resize", None, lambda c: c.p.resize(4, 5), {"rows": 4, "cols": 5}),
    ("DELETE " + PR, None, lambda c: c.p.remove(), {}),
    ("GET " + SB + "/files/list", [ENTRY], lambda c: c.s.files.list("/"), {"path": "/"}),
    ("GET " + SB + "/files/stat", ENTRY, lambda c: c.s.files.stat("/a"), {"path": "/a"}),
    ("DELETE " + SB + "/files", None, lambda c: c.s.files.remove("/a", recursive=True),
     {"path": "/a", "recursive": "true"}),
    ("POST " + SB + "/files/mkdir", None, lambda c: c.s.files.make_dir("/a"), {"path": "/a"}),
    ("GET /v1/snapshots", [fake.snapshot()], lambda c: c.snapshots.list(), {}),
    ("GET /v1/snapshots/t/info", fake.snapshot("t"), lambda c: c.snapshots.info("t"), {}),
    ("POST /v1/snapshots", fake.snapshot("t"),
     lambda c: c.snapshots.build("t", image="i", vcpus=2, cpu="x86-64-v2", warm=["true"],
                                   private=True),
     {"tag": "t", "image": "i", "vcpus": 2, "cpu": "x86-64-v2", "warm": ["true"],
      "private": True}),
    ("POST /v1/snapshots/t/compact", fake.snapshot("u"),
     lambda c: c.snapshots.compact("t", to="u", wait=False),
     {"to": "u", "wait": False}),
    ("POST /v1/artifacts", fake.snapshot("u"),
     lambda c: c.snapshots.import_artifact(b"", tag="u", trust_once=True),
     {"tag": "u", "trust_once": "true"}),
    ("POST /v1/snapshots/t/push", {"reference": "r/a:1", "bytes": 3, "bytes_sent": 2},
     lambda c: c.snapshots.push("t", "r/a:1"), {"reference": "r/a:1"}),
    ("POST /v1/pulls", fake.snapshot("u"),
     lambda c: c.snapshots.pull("r/a:1", tag="u", trust_once=True),
     {"reference": "r/a:1", "tag": "u", "trust_once": True}),
    ("GET /v1/hub/snapshot", HUB_SNAPSHOT, lambda c: c.snapshots.hub_info("r/a:1"),
     {"reference": "r/a:1"}),
    ("GET /v1/hub/snapshots", {"snapshots": [], "is_complete": True},
     lambda c: c.snapshots.hub_search("r", "team/"), {"registry": "r", "name": "team/"}),
    ("GET /v1/keys", {"key": KEY, "trusted": []}, lambda c: c.keys.get(), {}),
    ("PUT /v1/keys/a", None, lambda c: c.keys.trust("a", KEY), {"key": KEY}),
    ("DELETE /v1/keys/a", None, lambda c: c.keys.remove("a"), {}),
    ("DELETE /v1/snapshots/t", None, lambda c: c.snapshots.remove("t", cascade=True),
     {"cascade": "true"}),
    ("DELETE /v1/snapshots/t", None, lambda c: c.snapshots.remove("t", force=True),
     {"force": "true"}),
    ("GET /v1/operations", [OPERATION], lambda c: c.operations.list(state="running"),
     {"state": "running"}),
    ("GET /v1/operations/op-1", OPERATION, lambda c: c.operations.get("op-1"), {}),
    ("GET /v1/operations/op-1/wait", OPERATION, lambda c: c.operations.wait("op-1", timeout=5),
     {"timeout_secs": "5"}),
    ("POST /v1/operations/op-1/cancel", None, lambda c: c.operations.cancel("op-1"), {}),
    ("GET /v1/images", [{"name": "i", "description": "d"}], lambda c: c.images(), {}),
    ("GET /healthz", {"ok": True}, lambda c: c.health(), {}),
    ("GET /version", {"version": "1", "api": "v1"}, lambda c: c.version(), {}),
    ("GET /metrics", None, lambda c: c.metrics(), {}),
]  # fmt: skip


class With:
    """A client with a sandbox `s` and a process `p`."""

    def __init__(self, client: Any, sandbox: Any, process: Any) -> None:
        self._client, self.s, self.p = client, sandbox, process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def sent(request: httpx.Request) -> dict[str, Any]:
    import json

    if request.content:
        found: dict[str, Any] = json.loads(request.content)
        return found
    return dict(request.url.params)


def answers(daemon: FakeDaemon, route: str, answer: Any) -> None:
    daemon.routes = {
        "GET " + SB: fake.ok(fake.sandbox()),
        "GET " + PR: fake.ok(fake.process()),
        route: httpx.Response(204) if answer is None else fake.ok(answer),
    }


@pytest.mark.parametrize(("route", "answer", "act", "expected"), CASES)
def test_what_a_method_sends(
    daemon: FakeDaemon,
    route: str,
    answer: Any,
    act: Callable[[Any], Any],
    expected: dict[str, Any],
) -> None:
    answers(daemon, route, answer)
    with daemon.client() as client:
        sandbox = Sandbox.connect("sb-1", client=client)
        act(With(client, sandbox, sandbox.commands.connect("pr-1")))
    assert daemon.asked[-1] == route
    assert sent(daemon.requests[-1]) == expected


@pytest.mark.anyio
@pytest.mark.parametrize(("route", "answer", "act", "expected"), CASES)
async def test_what_an_asynchronous_method_sends(
    daemon: FakeDaemon,
    route: str,
    answer: Any,
    act: Callable[[Any], Any],
    expected: dict[str, Any],
) -> None:
    answers(daemon, route, answer)
    async with daemon.async_client() as client:
        sandbox = await AsyncSandbox.connect("sb-1", client=client)
        outcome = act(With(client, sandbox, await sandbox.commands.connect("pr-1")))
        assert inspect.isawaitable(outcome)
        await outcome
    assert daemon.asked[-1] == route
    assert sent(daemon.requests[-1]) == expected


def test_every_method_of_a_client_has_a_case() -> None:
    """A method without a case would be one that nobody has tried."""
    tried = " ".join(inspect.getsource(inspect.getmodule(With)).split())  # type: ignore[arg-type]
    from forkd_sdk import Commands, Files, Operations, Process, Sandbox, Snapshots

    elsewhere = {"create", "build", "close", "stream", "watch", "output", "snapshot", "of", "wait"}
    elsewhere |= {"info", "ping", "refresh", "remove", "send_stdin", "close_stdin", "exists", "get"}
    for kind in (Sandbox, Commands, Process, Files, Snapshots, Operations):
        for name, member in vars(kind).items():
            if callable(member) and not name.startswith("_") and name not in elsewhere:
                assert f".{name}(" in tried, f"{kind.__name__}.{name}"


@pytest.mark.parametrize(
    "data", ["hällo", "hällo".encode(), io.BytesIO("hällo".encode()), [b"h\xc3", b"\xa4llo"]]
)
def test_a_file_is_written_from_text_bytes_files_and_pieces(daemon: FakeDaemon, data: Any) -> None:
    answers(daemon, f"PUT {SB}/files", None)
    with daemon.client() as client:
        Sandbox.connect("sb-1", client=client).files.write("/a b", data, mode=0o755)
    request = daemon.requests[-1]
    assert dict(request.url.params) == {"path": "/a b", "mode": "0755"}
    assert request.content == "hällo".encode()


async def pieces() -> AsyncIterator[bytes]:
    yield b"h\xc3"
    yield b"\xa4llo"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "data",
    [
        lambda: "hällo",
        lambda: io.BytesIO("hällo".encode()),
        lambda: [b"h\xc3", b"\xa4llo"],
        pieces,
    ],
)
async def test_a_file_is_written_asynchronously(
    daemon: FakeDaemon, data: Callable[[], Any]
) -> None:
    answers(daemon, f"PUT {SB}/files", None)
    async with daemon.async_client() as client:
        sandbox = await AsyncSandbox.connect("sb-1", client=client)
        await sandbox.files.write("/a", data())
    assert daemon.requests[-1].content == "hällo".encode()


def test_a_file_is_read_as_text_bytes_and_pieces(daemon: FakeDaemon) -> None:
    daemon.routes = {
        "GET " + SB: fake.ok(fake.sandbox()),
        f"GET {SB}/files": lambda _: httpx.Response(200, content="hällo".encode()),
    }
    with daemon.client() as client:
        files = Sandbox.connect("sb-1", client=client).files
        assert files.read("/a") == "hällo"
        assert files.read("/a", format="bytes") == "hällo".encode()
        with files.stream("/a") as stream:
            assert b"".join(stream) == "hällo".encode()
    asked = [dict(request.url.params) for request in daemon.requests[-2:]]
    assert asked == [{"path": "/a"}, {"path": "/a", "max_bytes": str(16 << 30)}]


def test_an_artifact_comes_piece_by_piece(daemon: FakeDaemon) -> None:
    content = "hällo".encode()
    daemon.routes = {"GET /v1/snapshots/t/artifact": lambda _: httpx.Response(200, content=content)}
    with daemon.client() as client, client.snapshots.export_artifact("t") as stream:
        assert b"".join(stream) == content


def test_names_cannot_leave_their_place_in_the_path(daemon: FakeDaemon) -> None:
    with daemon.client() as client, pytest.raises(Exception, match="GET"):
        client.snapshots.info("../x?y")
    assert daemon.requests[0].url.raw_path == b"/v1/snapshots/..%2Fx%3Fy/info"


def test_the_token_is_sent(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.routes = {"GET /healthz": fake.ok({"ok": True})}
    with daemon.client(token="secret") as client:
        client.health()
    monkeypatch.setenv("FORKD_TOKEN", "other")
    with daemon.client() as client:
        client.health()
    sent = [request.headers["authorization"] for request in daemon.requests]
    assert sent == ["Bearer secret", "Bearer other"]


def test_clients_of_both_kinds_show_where_they_connect_to() -> None:
    with Client("unix:/s") as client:
        assert repr(client) == "<Client /s>"
    assert repr(AsyncClient("http://h")) == "<AsyncClient http://h>"
