"""Streams: output, changes of files, events and builds, also over connections that break."""

from __future__ import annotations

from typing import Any

import fake
import httpx
import pytest
from fake import FakeDaemon

from forkd_sdk import AsyncSandbox, Sandbox, errors
from forkd_sdk._core import source

SB = "/v1/sandboxes/sb-1"
PR = f"{SB}/processes/pr-1"
EXIT = ("exit", {"exit_code": 0, "signal": None, "timed_out": False}, "9")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "backoff_secs", lambda _: 0.0)


def routes(daemon: FakeDaemon, *streams: Any) -> None:
    daemon.routes = {
        f"GET {SB}": fake.ok(fake.sandbox()),
        f"POST {SB}/processes": fake.ok(fake.process(), 201),
        f"POST {PR}/stdin": lambda _: httpx.Response(204),
        f"DELETE {PR}": lambda _: httpx.Response(204),
        f"GET {PR}/output": list(streams),
    }


def connected(daemon: FakeDaemon, *streams: Any) -> Sandbox:
    routes(daemon, *streams)
    return Sandbox.connect("sb-1", client=daemon.client())


def test_output_is_called_back_with_and_collected(daemon: FakeDaemon) -> None:
    stream = fake.events(("stdout", {"text": "hé"}, "3"), ("stderr", {"base64": "/w=="}, "4"), EXIT)
    seen: list[str] = []
    sandbox = connected(daemon, stream)
    result = sandbox.commands.run("x", stdin="in", on_stdout=seen.append)
    assert seen == ["hé"]
    assert (result.stdout, result.stderr_bytes, result.exit_code) == ("hé", b"\xff", 0)
    assert daemon.asked[1:] == [
        f"POST {SB}/processes",
        f"POST {PR}/stdin",
        f"GET {PR}/output",
        f"DELETE {PR}",
    ]
    assert daemon.body(1)["hold_output"] is True, "all of it is to be seen"
    assert daemon.requests[2].content == b"in"
    assert daemon.requests[2].url.params["eof"] == "true"


@pytest.mark.anyio
async def test_an_asynchronous_callback_is_awaited(daemon: FakeDaemon) -> None:
    routes(daemon, fake.events(("stdout", {"text": "a"}, "1"), EXIT))
    seen: list[str] = []

    async def note(text: str) -> None:
        seen.append(text)

    async with daemon.async_client() as client:
        sandbox = await AsyncSandbox.connect("sb-1", client=client)
        result = await sandbox.commands.run("x", on_stdout=note)
    assert (seen, result.stdout) == (["a"], "a")


def test_a_process_is_removed_when_the_callback_raises(daemon: FakeDaemon) -> None:
    stream = fake.events(("stdout", {"text": "a"}, "1"), EXIT)
    sandbox = connected(daemon, stream)

    def fail(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.commands.run("x", on_stdout=fail)
    assert daemon.asked[-1] == f"DELETE {PR}"
    assert stream.extensions["pieces"].closed


def test_reading_goes_on_where_the_connection_broke(daemon: FakeDaemon) -> None:
    sandbox = connected(
        daemon,
        fake.events(("stdout", {"text": "ab"}, "2"), cut=True),
        httpx.ReadTimeout("slow"),
        fake.events(("stderr", {"text": "c"}, "3")),
        fake.events(EXIT),
    )
    process = sandbox.commands.start("x")
    result = process.wait()
    assert (result.stdout, result.stderr) == ("ab", "c")
    asked = [r.url.params.get("from") for r in daemon.requests if r.url.path.endswith("output")]
    assert asked == [None, "2", "2", "3"]


def test_a_daemon_that_stays_away_is_given_up(daemon: FakeDaemon) -> None:
    sandbox = connected(
        daemon,
        fake.events(("stdout", {"text": "a"}, "1"), cut=True),
        *[httpx.ConnectError("refused") for _ in range(20)],
    )
    with pytest.raises(errors.UnreachableError):
        sandbox.commands.start("x").wait()
    tries = sum(asked.endswith("/output") for asked in daemon.asked)
    assert tries == 1 + source.RECONNECTS_MAX


def test_a_refusal_is_not_repeated(daemon: FakeDaemon) -> None:
    sandbox = connected(daemon, fake.error("sandbox_not_found", 404))
    with pytest.raises(errors.SandboxNotFoundError):
        sandbox.commands.start("x").wait()


def test_input_is_sent_again_until_the_program_takes_it(daemon: FakeDaemon) -> None:
    sandbox = connected(daemon)
    waits = [fake.error("input_waits", 503, retry_after="0") for _ in range(9)]
    daemon.routes[f"POST {PR}/stdin"] = [*waits, httpx.Response(204)]
    sandbox.commands.start("x", stdin=True).send_stdin("data")
    assert [r.content for r in daemon.requests][-10:] == [b"data"] * 10


def test_lost_output_is_counted(daemon: FakeDaemon) -> None:
    sandbox = connected(daemon, fake.events(("lost", {"bytes": 5}, "5"), EXIT))
    assert sandbox.commands.start("x").wait().lost_bytes == 5


def test_a_sandbox_that_ends_is_told(daemon: FakeDaemon) -> None:
    stream = fake.events(("gone", {"reason": "it was removed"}, ""))
    output = connected(daemon, stream).commands.start("x").output()
    with pytest.raises(errors.SandboxGoneError, match="it was removed"):
        next(output)
    assert stream.extensions["pieces"].closed
    assert list(output) == []


def test_a_process_that_was_killed_or_ran_out_of_time(daemon: FakeDaemon) -> None:
    killed = ("exit", {"exit_code": None, "signal": 9, "timed_out": False}, "1")
    late = ("exit", {"exit_code": 137, "signal": 9, "timed_out": True}, "1")
    sandbox = connected(daemon, fake.events(killed), fake.events(late))
    assert sandbox.commands.start("x").wait().exit_code == 137
    with pytest.raises(errors.CommandTimeoutError):
        sandbox.commands.start("x").wait()


def test_chunks_carry_the_offset_where_reading_can_go_on(daemon: FakeDaemon) -> None:
    stream = fake.events(("stdout", {"text": "é"}, "2"), ("stdout", {"text": "b"}, "3"), EXIT)
    chunks = list(connected(daemon, stream).commands.start("x"))
    assert [(chunk.text, chunk.offset) for chunk in chunks] == [("é", 2), ("b", 3)]


@pytest.mark.parametrize(
    "data", ["nonsense", "[1]", '{"base64": "a"}', '{"other": 1}', '{"base64": 5}']
)
def test_a_chunk_that_makes_no_sense_is_refused(data: str) -> None:
    with pytest.raises(errors.NotUnderstoodError):
        source.OutputSource("sb-1", "pr-1").read("stdout", data, "1")


def test_an_answer_that_is_no_stream_is_refused(daemon: FakeDaemon) -> None:
    sandbox = connected(daemon, httpx.Response(200, text="<html>"))
    with pytest.raises(errors.NotUnderstoodError):
        sandbox.commands.start("x").wait()


def test_a_watch_is_open_from_the_with_line_on_and_is_not_made_anew(daemon: FakeDaemon) -> None:
    sandbox = connected(daemon)
    daemon.routes[f"GET {SB}/files/watch"] = [
        fake.events(("created", {"path": "/a"}, ""), cut=True),
        fake.events(),
    ]
    with sandbox.files.watch("/", recursive=True) as changes:
        assert daemon.asked[-1] == f"GET {SB}/files/watch"
        change = next(changes)
        assert (change.kind, change.path) == ("created", "/a")
        with pytest.raises(errors.ConnectionBrokenError):
            next(changes)
    assert sum(asked.endswith("watch") for asked in daemon.asked) == 1


def test_events_go_on_after_the_last_one_that_came(daemon: FakeDaemon) -> None:
    daemon.routes["GET /v1/events"] = [
        fake.events(("sandbox.dead", fake.sandbox(state="dead"), "b-7"), cut=True),
        fake.events(("lost", {"events": 3}, "b-10"), ("operation.ended", OPERATION, "b-11")),
    ]
    with daemon.client().events(after="b-6", type="") as events:
        found = [next(events) for _ in range(3)]
    assert [event.type for event in found] == ["sandbox.dead", "lost", "operation.ended"]
    assert found[0].data.state == "dead"  # type: ignore[union-attr]
    assert (found[1].lost, found[2].id) == (3, "b-11")
    asked = [request.headers["last-event-id"] for request in daemon.requests]
    assert asked == ["b-6", "b-7"]


def test_a_sign_of_life_moves_the_place_to_go_on_from(daemon: FakeDaemon) -> None:
    life = fake.events(cut=True)
    life.extensions["pieces"].pieces.append(b"id: 40\n:\n\n")
    after = ("sandbox.dead", fake.sandbox(state="dead"), "41")
    daemon.routes["GET /v1/events"] = [life, fake.events(after)]
    with daemon.client().events() as events:
        assert next(events).id == "41"
    asked = [request.headers.get("last-event-id") for request in daemon.requests]
    assert asked == [None, "40"]


OPERATION = fake.operation()


def ndjson(*lines: str) -> httpx.Response:
    return httpx.Response(200, stream=fake.Pieces([line.encode() for line in lines]))


def test_a_build_tells_its_steps(daemon: FakeDaemon) -> None:
    snapshot = httpx.Response(200, json=fake.snapshot("t")).text
    daemon.routes["POST /v1/snapshots"] = [
        ndjson('{"step": "boot"}\n{"st', 'ep": "warm"}\n', f'{{"snapshot": {snapshot}}}\n'),
        ndjson('{"error": {"error": "e", "code": "boot_failed", "hint": "h"}}\n'),
        ndjson('{"step": "boot"}\n'),
    ]
    steps: list[str] = []
    client = daemon.client()
    assert client.snapshots.build("t", image="i", on_step=steps.append).tag == "t"
    assert steps == ["boot", "warm"]
    with pytest.raises(errors.BootFailedError):
        client.snapshots.build("t", image="i", on_step=steps.append)
    with pytest.raises(errors.NotUnderstoodError, match="went away"):
        client.snapshots.build("t", image="i", on_step=steps.append)
