"""What takes several requests: creating, waiting, removing."""

from __future__ import annotations

from typing import Any

import fake
import httpx
import pytest
from fake import FakeDaemon

from forkd_sdk import NetworkPolicy, Sandbox, errors
from forkd_sdk._core import flow

CREATED = [fake.sandbox("sb-1")]
IMAGES = [{"name": "python", "description": "d"}]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "POLL_SECS", 0.001)


def missing() -> httpx.Response:
    return fake.error("snapshot_not_found", 404)


def test_a_sandbox_starts_from_the_snapshot_with_the_tag(daemon: FakeDaemon) -> None:
    daemon.routes = {"POST /v1/sandboxes": fake.ok(CREATED, 201)}
    client = daemon.client()
    bounds: dict[str, Any] = {
        "memory_limit_mib": 600,
        "per_child_netns": True,
        "network": NetworkPolicy(allow_out=["api.example.com:443"]),
    }
    life: dict[str, Any] = {"ttl": 0.5, "idle_timeout": 9}
    sandbox = Sandbox.create("py", metadata={"a": "b"}, **life, **bounds, client=client)
    assert sandbox.id == "sb-1"
    assert daemon.body() == {
        "snapshot_tag": "py",
        "n": 1,
        "metadata": {"a": "b"},
        "ttl_secs": 1,
        "idle_timeout_secs": 9,
        "memory_limit_mib": 600,
        "per_child_netns": True,
        "network": {"allow_out": ["api.example.com:443"]},
    }


def test_what_a_sandbox_may_reach_is_told_and_replaced(daemon: FakeDaemon) -> None:
    policy = {"allow_internet_access": False, "deny_out": ["198.51.100.0/24"]}
    daemon.routes = {
        "POST /v1/sandboxes": fake.ok(CREATED, 201),
        "GET /v1/sandboxes/sb-1/network": fake.ok(policy),
        "PUT /v1/sandboxes/sb-1/network": fake.ok(fake.sandbox("sb-1")),
    }
    sandbox = Sandbox.create("py", client=daemon.client())
    told = sandbox.network()
    assert told == NetworkPolicy(allow_internet_access=False, deny_out=["198.51.100.0/24"])
    sandbox.set_network(told)
    assert daemon.body() == policy
    sandbox.set_network(NetworkPolicy())
    assert daemon.body() == {}


def test_what_was_not_asked_for_is_not_sent(daemon: FakeDaemon) -> None:
    daemon.routes = {"POST /v1/sandboxes": fake.ok(CREATED, 201)}
    Sandbox.create("py", client=daemon.client())
    assert daemon.body() == {"snapshot_tag": "py", "n": 1}


def test_a_template_is_built_from_the_image_of_that_name(daemon: FakeDaemon) -> None:
    daemon.routes = {
        "POST /v1/sandboxes": [missing(), fake.ok(CREATED, 201)],
        "GET /v1/images": fake.ok(IMAGES),
        "POST /v1/snapshots": fake.ok(fake.snapshot("python"), 201),
    }
    Sandbox.create("python", client=daemon.client())
    assert daemon.asked == [
        "POST /v1/sandboxes",
        "GET /v1/images",
        "POST /v1/snapshots",
        "POST /v1/sandboxes",
    ]
    assert daemon.body(2) == {"tag": "python", "image": "python"}


def test_neither_snapshot_nor_image_is_an_error_that_names_the_images(daemon: FakeDaemon) -> None:
    daemon.routes = {"POST /v1/sandboxes": missing(), "GET /v1/images": fake.ok(IMAGES)}
    with pytest.raises(errors.SnapshotNotFoundError, match=r"`ruby`.*images: python") as raised:
        Sandbox.create("ruby", client=daemon.client())
    assert raised.value.request_id == "req-1"


@pytest.mark.parametrize("late", [False, True])
def test_a_template_that_somebody_else_builds_is_waited_for(daemon: FakeDaemon, late: bool) -> None:
    first = missing() if late else fake.error("snapshot_not_ready", 409)
    daemon.routes = {
        "POST /v1/sandboxes": [first, fake.ok(CREATED, 201)],
        "GET /v1/images": fake.ok(IMAGES),
        "POST /v1/snapshots": fake.error("tag_taken", 409),
        "GET /v1/snapshots/python/info": [
            fake.ok(fake.snapshot("python", status="writing")),
            fake.ok(fake.snapshot("python")),
        ],
    }
    assert Sandbox.create("python", client=daemon.client()).id == "sb-1"
    assert daemon.asked.count("GET /v1/snapshots/python/info") == 2


def test_a_snapshot_that_fails_or_takes_too_long(daemon: FakeDaemon) -> None:
    daemon.routes = {
        "GET /v1/snapshots/t/info": [
            fake.ok(fake.snapshot("t")),
            fake.ok(fake.snapshot("t", status="failed", error="full")),
            *[fake.ok(fake.snapshot("t", status="writing")) for _ in range(50)],
        ]
    }
    snapshot = daemon.client().snapshots.get("t")
    with pytest.raises(errors.SnapshotNotReadyError, match="full"):
        snapshot.wait()
    with pytest.raises(TimeoutError):
        snapshot.wait(timeout=0.005)


def test_an_operation_is_waited_for_in_pieces_that_the_daemon_allows(daemon: FakeDaemon) -> None:
    operation = fake.operation(state="running")
    daemon.routes = {
        "GET /v1/operations/op-1/wait": [
            fake.ok(operation),
            fake.ok(operation),
            fake.ok(operation | {"state": "failed"}),
            fake.ok(operation),
        ]
    }
    client = daemon.client()
    assert client.operations.wait("op-1", timeout=65).state == "failed"
    waits = [request.url.params["timeout_secs"] for request in daemon.requests]
    assert waits == ["30", "30", "5"]
    with pytest.raises(TimeoutError):
        client.operations.wait("op-1", timeout=2)


def test_a_context_manager_removes_the_sandbox_also_after_an_error(daemon: FakeDaemon) -> None:
    daemon.routes = {
        "POST /v1/sandboxes": fake.ok(CREATED, 201),
        "DELETE /v1/sandboxes/sb-1": fake.error("sandbox_not_found", 404),
    }
    with pytest.raises(ZeroDivisionError), Sandbox.create("py", client=daemon.client()):
        raise ZeroDivisionError
    assert daemon.asked[-1] == "DELETE /v1/sandboxes/sb-1"


def test_a_branch_as_context_manager_removes_all_that_came_of_it(daemon: FakeDaemon) -> None:
    removals: list[Any] = [
        fake.error("snapshot_not_ready", 409),
        fake.error("snapshot_in_use", 409),
        httpx.Response(204),
        missing(),
    ]
    daemon.routes = {
        "POST /v1/sandboxes": fake.ok(CREATED, 201),
        "POST /v1/sandboxes/sb-1/branch": lambda _: fake.ok(fake.snapshot("t"), 201),
        "DELETE /v1/snapshots/t": removals,
    }
    sandbox = Sandbox.create("py", client=daemon.client())
    with sandbox.branch():
        pass
    assert removals == [removals[-1]]
    assert daemon.requests[-1].url.params["cascade"] == "true"
    sandbox.branch().remove()


def test_files_exist_or_not(daemon: FakeDaemon) -> None:
    entry = {"name": "a", "path": "/a", "kind": "file", "size_bytes": 1, "mode": "0644"}
    daemon.routes = {
        "GET /v1/sandboxes/sb-1": fake.ok(fake.sandbox()),
        "GET /v1/sandboxes/sb-1/files/stat": [
            fake.ok(entry | {"modified_at_unix": 1}),
            fake.error("file_not_found", 404),
            fake.error("sandbox_not_found", 404),
        ],
    }
    files = Sandbox.connect("sb-1", client=daemon.client()).files
    assert files.exists("/a")
    assert not files.exists("/b")
    with pytest.raises(errors.SandboxNotFoundError):
        files.exists("/c")


def test_connections_that_nobody_is_in_charge_of_end_with_the_last_sandbox(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forkd_sdk._core.target import Target
    from forkd_sdk._sync import client as module
    from forkd_sdk._sync.transport import Transport

    mounted = httpx.MockTransport(daemon)
    target = Target(url="http://fake")
    shared = Transport(target, token=None, max_retries=0, mounted=mounted, shared=True)
    monkeypatch.setattr(module, "transport_of_environment", lambda: shared)
    daemon.routes = {
        "POST /v1/sandboxes": lambda _: fake.ok(CREATED, 201),
        "POST /v1/sandboxes/sb-1/branch": fake.ok(
            fake.snapshot("t") | {"children": [{"sandbox": fake.sandbox("sb-2")}]}, 201
        ),
        "DELETE /v1/sandboxes/sb-1": httpx.Response(204),
        "DELETE /v1/sandboxes/sb-2": httpx.Response(204),
    }
    with Sandbox.create("py") as sandbox:
        child = sandbox.branch(1).unwrap()[0]
    assert shared._http is not None, "the child still uses it"
    child.remove()
    assert shared._http is None
