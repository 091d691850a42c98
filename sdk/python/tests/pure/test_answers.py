"""Answers are understood, or refused by name; errors have their class, hint and request id."""

from __future__ import annotations

from typing import Any

import fake
import httpx
import pytest
from fake import FakeDaemon

from forkd_sdk import Execution, ForkdError, Part, Sandbox, errors, models
from forkd_sdk._core.decode import decode
from forkd_sdk._core.result import CommandResult


def connected(daemon: FakeDaemon, **routes: Any) -> Sandbox:
    daemon.routes["GET /v1/sandboxes/sb-1"] = fake.ok(fake.sandbox())
    for route, answer in routes.items():
        daemon.routes[f"POST /v1/sandboxes/sb-1/{route}"] = answer
    return Sandbox.connect("sb-1", client=daemon.client())


def test_an_error_has_class_hint_and_request_id(daemon: FakeDaemon) -> None:
    daemon.routes = {"GET /v1/sandboxes/sb-9": fake.error("sandbox_not_found", 404, "no sb-9")}
    with pytest.raises(errors.SandboxNotFoundError) as raised:
        Sandbox.connect("sb-9", client=daemon.client())
    error = raised.value
    assert isinstance(error, ForkdError)
    assert (error.message, error.hint, error.status) == ("no sb-9", "do something", 404)
    assert (error.word, error.request_id) == ("sandbox_not_found", "req-1")
    assert str(error) == "no sb-9 (hint: do something) [sandbox_not_found, req-1]"


def test_a_word_of_a_newer_daemon_is_kept_and_what_is_no_text_is_refused() -> None:
    assert decode(models.Sandbox, fake.sandbox(state="hibernating")).state == "hibernating"
    with pytest.raises(errors.NotUnderstoodError, match=r"Sandbox\.state"):
        decode(models.Sandbox, fake.sandbox(state=1))


def test_a_code_of_a_newer_daemon_is_an_api_error(daemon: FakeDaemon) -> None:
    daemon.routes = {"GET /version": fake.error("too_tired", 429)}
    with pytest.raises(errors.ApiError) as raised:
        daemon.client().version()
    assert type(raised.value) is errors.ApiError
    assert raised.value.word == "too_tired"


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(502, text="<html>bad gateway"),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"api": "v1"}),
        httpx.Response(200, json={"api": "v1", "version": 7}),
        httpx.Response(302, headers={"location": "/"}),
    ],
)
def test_what_is_no_forkd_daemon_is_not_understood(
    daemon: FakeDaemon, answer: httpx.Response
) -> None:
    daemon.routes = {"GET /version": answer}
    with pytest.raises(errors.NotUnderstoodError):
        daemon.client().version()


def test_unknown_fields_are_left_out_and_missing_optional_ones_are_none() -> None:
    sandbox = decode(models.Sandbox, fake.sandbox(colour="red", metadata=None, pid=7))
    assert not hasattr(sandbox, "colour")
    assert (sandbox.pid, sandbox.netns, sandbox.metadata) == (7, None, {})
    assert decode(models.Snapshot, fake.snapshot(pause_ms=1)).pause_ms == 1.0
    with pytest.raises(errors.NotUnderstoodError, match=r"Snapshot\.phases_ms"):
        decode(models.Snapshot, fake.snapshot(phases_ms={"pause": "long"}))


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (httpx.ConnectError("refused"), errors.UnreachableError),
        (httpx.ReadTimeout("slow"), errors.RequestTimeoutError),
        (httpx.ReadError("cut"), errors.ConnectionBrokenError),
        (httpx.RemoteProtocolError("gone"), errors.ConnectionBrokenError),
    ],
)
def test_failures_of_the_connection_are_told_apart(
    daemon: FakeDaemon, failure: Exception, kind: type[Exception]
) -> None:
    daemon.routes = {"GET /version": failure}
    with pytest.raises(kind):
        daemon.client().version()
    assert issubclass(errors.RequestTimeoutError, TimeoutError)


def test_only_a_refusal_that_says_when_is_repeated(daemon: FakeDaemon) -> None:
    busy = [fake.error("sandbox_busy", 503, retry_after="0") for _ in range(3)]
    daemon.routes = {"GET /version": [*busy[:2], fake.ok({"version": "1", "api": "v1"})]}
    assert daemon.client(max_retries=2).version().version == "1"
    daemon.routes = {"GET /version": busy[:2]}
    with pytest.raises(errors.SandboxBusyError):
        daemon.client(max_retries=1).version()
    daemon.requests.clear()
    daemon.routes = {"GET /version": [fake.error("internal", 500)]}
    with pytest.raises(errors.InternalError):
        daemon.client().version()
    assert len(daemon.requests) == 1


def test_a_closed_client_says_so(daemon: FakeDaemon) -> None:
    client = daemon.client()
    client.close()
    with pytest.raises(errors.ClientClosedError):
        client.version()


def test_a_branch_gives_a_snapshot_and_for_each_child_a_sandbox_or_an_error(
    daemon: FakeDaemon,
) -> None:
    body = {"error": "too full", "code": "no_space", "hint": "h"}
    children = [{"sandbox": fake.sandbox("sb-2")}, {"error": body}]
    sandbox = connected(daemon, branch=fake.ok(fake.snapshot("t") | {"children": children}, 201))
    branch = sandbox.branch(2)
    assert branch.snapshot.tag == "t"
    assert [child.sandbox is None for child in branch.children] == [False, True]
    assert isinstance(branch.children[1].error, errors.NoSpaceError)
    assert [child.id for child in branch.sandboxes] == ["sb-2"]
    with pytest.raises(errors.NoSpaceError):
        branch.unwrap()


EXEC = {"stdout": "", "stderr": "a\nlast\n", "exit_code": 2, "timed_out": False}


def test_a_command_that_fails_is_a_result_unless_it_is_to_be_checked(daemon: FakeDaemon) -> None:
    sandbox = connected(daemon, exec=lambda _: fake.ok(EXEC))
    result = sandbox.commands.run(["make"])
    assert (result.exit_code, result.ok) == (2, False)
    with pytest.raises(errors.CommandFailedError, match=r"`make` ended .* 2: last") as raised:
        sandbox.commands.run(["make"], check=True)
    assert raised.value.result == result


def test_a_command_whose_time_is_over_never_looks_like_empty_output(daemon: FakeDaemon) -> None:
    sandbox = connected(daemon, exec=fake.ok(EXEC | {"timed_out": True, "stdout": "half"}))
    with pytest.raises(TimeoutError) as raised:
        sandbox.commands.run("sleep 9")
    assert isinstance(raised.value, errors.CommandTimeoutError)
    assert raised.value.result.stdout == "half"


def test_output_that_is_not_text_is_exact_in_bytes(daemon: FakeDaemon) -> None:
    answer = EXEC | {"stdout": "�", "stdout_base64": "/w=="}
    result = connected(daemon, exec=fake.ok(answer)).commands.run("x")
    assert (result.stdout_bytes, result.stdout) == (b"\xff", "�")


def test_a_signal_is_named() -> None:
    result = CommandResult(("x",), 137, b"", b"", signal=9)
    with pytest.raises(errors.CommandFailedError, match="SIGKILL"):
        result.raise_for_exit()


EVAL = {"stdout": "", "stderr": "", "exit_code": 0, "timed_out": False, "state_lost": False}


def test_rich_results_are_found_by_their_type(daemon: FakeDaemon) -> None:
    parts = [
        {"mime": "text/plain", "data": "<table>"},
        {"mime": "text/html", "data": "<b>x</b>"},
        {"mime": "image/png", "data": "iVBORw=="},
        {"mime": "image/svg+xml", "data": "<svg/>"},
        {"mime": "application/json", "data": '{"a": 1}'},
    ]
    answer = EVAL | {"result": "<table>", "parts": parts}
    execution = connected(daemon, eval=fake.ok(answer)).run_code("table")
    assert (execution.text, execution.html, execution.svg) == ("<table>", "<b>x</b>", "<svg/>")
    assert execution.png == b"\x89PNG"
    assert (execution.json, execution.latex, execution.jpeg) == ({"a": 1}, None, None)
    assert execution._repr_mimebundle_()["application/json"] == {"a": 1}
    assert (execution.displays, execution.displays_left_out) == ((), 0)


def test_what_was_shown_has_its_forms_too(daemon: FakeDaemon) -> None:
    chart = {"mime": "application/vnd.forkd.chart+json", "data": '{"type": "pie"}'}
    table = {"mime": "application/vnd.forkd.table+json", "data": '{"n": [1]}'}
    figure = {"parts": [{"mime": "image/png", "data": "iVBORw=="}, chart]}
    answer = EVAL | {"result": None, "displays": [figure, {"parts": [table]}]}
    answer |= {"displays_left_out": 3}
    execution = connected(daemon, eval=fake.ok(answer)).run_code("plt.show()")
    shown, frame = execution.displays
    assert (shown.png, shown.chart, shown.table) == (b"\x89PNG", {"type": "pie"}, None)
    assert frame.table == {"n": [1]}
    assert shown._repr_mimebundle_()["application/vnd.forkd.chart+json"] == {"type": "pie"}
    assert (execution.png, execution.displays_left_out) == (None, 3)


@pytest.mark.parametrize(
    ("mime", "is_text"),
    [
        ("text/html", True),
        ("application/vnd.x+json", True),
        ("image/svg+xml", True),
        ("application/javascript", True),
        ("image/png", False),
        ("application/json; charset=latin-1", False),
    ],
)
def test_text_and_bytes_are_told_apart_by_the_type(mime: str, is_text: bool) -> None:
    assert Part(mime, "aGk=").content == (b"aGk=" if is_text else b"hi")


def test_a_part_that_lies_about_its_type_does_no_harm() -> None:
    assert Part("image/png", "not base64!").content == b"not base64!"


def test_an_exception_in_code_is_a_result_until_it_is_raised(daemon: FakeDaemon) -> None:
    trace = "Traceback (most recent call last):\nValueError: no\n"
    sandbox = connected(daemon, eval=fake.ok(EVAL | {"error": trace, "exit_code": 1}))
    execution = sandbox.run_code("x")
    assert not execution.ok
    with pytest.raises(errors.CodeError, match=r"^ValueError: no$") as raised:
        execution.raise_for_error()
    assert raised.value.execution is execution


def test_code_whose_time_is_over_raises(daemon: FakeDaemon) -> None:
    sandbox = connected(daemon, eval=fake.ok(EVAL | {"timed_out": True, "error": "Interrupt"}))
    with pytest.raises(errors.CodeTimeoutError):
        sandbox.run_code("while True: pass")
    assert Execution(b"", b"", None, None).raise_for_error().ok
