"""A template is the text of a recipe, and its build is a run of the program `forkd`."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import fake
import httpx
import pytest
from fake import FakeDaemon

from forkd_sdk import (
    AsyncTemplate,
    BuildFailedError,
    BuildStep,
    Client,
    ForkdError,
    Template,
    command,
    errors,
    port,
)

# Python 3.10 has none.
tomllib: Any = None
with contextlib.suppress(ImportError):
    tomllib = importlib.import_module("tomllib")

TINY = Template.from_snapshot("tiny")

# Notes how it was called, and then does what the test says.
PROGRAM = """#!{python}
import json, os, signal, sys, time
names = ["FORKD_URL", "FORKD_SOCKET", "FORKD_TOKEN", "FORKD_CA_CERT"]
found = {{name: os.environ[name] for name in names if name in os.environ}}
called = {{"arguments": sys.argv[1:], "recipe": sys.stdin.read(), "environment": found}}
place = os.path.dirname(os.path.abspath(__file__))
with open(place + "/called", "w") as file:
    json.dump(called, file)
def tell(event, **more):
    print(json.dumps({{"event": event, **more}}), flush=True)
def step(status, **more):
    tell("step", number=1, of=1, status=status, line=3, step="run true", ms=1.5, **more)
{acts}
"""

BUILT = 'step("running"); step("done", snapshot_tag="step-1"); tell("built", tag="app", ms=2.5)'

# Tells that it runs, and that it ends in order when it is asked to.
PATIENT = """
def stop(*_):
    open(place + "/stopped", "w").close()
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
step("running")
time.sleep(60)
"""


class Program:
    """The program of a test."""

    def __init__(self, place: Path, acts: str) -> None:
        self.place, self.path = place, place / "fake-forkd"
        self.path.write_text(PROGRAM.format(python=sys.executable, acts=acts))
        self.path.chmod(0o755)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def called(self) -> dict[str, Any]:
        """How it was called."""
        found: dict[str, Any] = json.loads((self.place / "called").read_text())
        return found

    @property
    def was_asked_to_end(self) -> bool:
        return (self.place / "stopped").exists()


@pytest.fixture
def daemon() -> FakeDaemon:
    daemon = FakeDaemon()
    daemon.routes = {"GET /v1/snapshots/app/info": fake.ok(fake.snapshot("app"))}
    return daemon


@pytest.mark.parametrize(
    ("template", "lines"),
    [
        (TINY, ['from = "tiny"']),
        (
            Template.from_image("python:3.12", mem_size_mib=1024, vcpus=2),
            ['from_image = "python:3.12"', "mem_size_mib = 1024", "vcpus = 2"],
        ),
        (TINY.run("a b"), ['from = "tiny"', "", "[[step]]", 'run = "a b"']),
        (TINY.run(["a", "b c"]), ['from = "tiny"', "", "[[step]]", 'run = ["a", "b c"]']),
        (
            TINY.copy("a", "./"),
            ['from = "tiny"', "", "[[step]]", 'copy = "a"', 'to = "./"'],
        ),
        (
            TINY.copy(["a", "b"], "/c/", owner="me:us", mode=0o64),
            [
                *('from = "tiny"', "", "[[step]]", 'copy = ["a", "b"]', 'to = "/c/"'),
                *('owner = "me:us"', 'mode = "0064"'),
            ],
        ),
        (
            TINY.env({"A": "1", "b.c": "="}),
            ['from = "tiny"', "", "[[step]]", 'env = { "A" = "1", "b.c" = "=" }'],
        ),
        (TINY.workdir("/srv"), ['from = "tiny"', "", "[[step]]", 'workdir = "/srv"']),
        (TINY.user("app"), ['from = "tiny"', "", "[[step]]", 'user = "app"']),
        (TINY.start("serve"), ['from = "tiny"', "", "[[step]]", 'start = "serve"']),
        (
            TINY.start(["serve"], ready=port(8000)),
            [
                *('from = "tiny"', "", "[[step]]", 'start = ["serve"]'),
                "ready = { port = 8000, timeout_secs = 60 }",
            ],
        ),
        (
            TINY.start("serve", ready=command("curl -f x", timeout=4.5)),
            [
                *('from = "tiny"', "", "[[step]]", 'start = "serve"'),
                'ready = { command = "curl -f x", timeout_secs = 5 }',
            ],
        ),
    ],
)
def test_each_step_is_written_as_forkd_toml_has_it(template: Template, lines: list[str]) -> None:
    assert template.recipe.splitlines() == lines


ODD = [
    'a "quoted" \\ word',
    "two\nlines\r\n\ttab",
    "'''\"\"\"",
    "héllo 😀 \u2028",
    "".join(map(chr, range(1, 32))) + "\x7f\x80",
    "$HOME `x` #{y} %s {z}",
    "",
]


@pytest.mark.skipif(tomllib is None, reason="this Python reads no TOML")
@pytest.mark.parametrize("text", ODD)
def test_any_text_comes_out_of_the_recipe_as_it_went_in(text: str) -> None:
    template = Template.from_snapshot(text).run(text).run([text]).env({text: text})
    template = template.copy([text], text, owner=text).workdir(text).user(text)
    template = template.start(text, ready=command(text))
    read = tomllib.loads(template.recipe)
    assert read == {
        "from": text,
        "step": [
            {"run": text},
            {"run": [text]},
            {"env": {text: text}},
            {"copy": [text], "to": text, "owner": text},
            {"workdir": text},
            {"user": text},
            {"start": text, "ready": {"command": text, "timeout_secs": 60}},
        ],
    }


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ForkdError, match="is not Unicode"):
        TINY.run("half \ud83d")


def test_a_step_leaves_the_template_as_it_is() -> None:
    first, second = TINY.run("a"), TINY.run("b")
    assert TINY.recipe == 'from = "tiny"\n'
    assert '"b"' not in first.recipe
    assert '"a"' not in second.recipe


def test_a_build_tells_of_its_steps_and_gives_the_snapshot(
    tmp_path: Path, daemon: FakeDaemon
) -> None:
    seen: list[BuildStep] = []
    program = str(Program(tmp_path, BUILT))
    built = TINY.run("true").build(
        "app", on_step=seen.append, program=program, client=daemon.client()
    )
    assert [(step.status, step.step) for step in seen] == [
        ("running", "run true"),
        ("done", "run true"),
    ]
    assert (built.tag, built.ms, built.snapshot.info.status) == ("app", 2.5, "ready")
    assert [(step.cached, step.ms, step.snapshot_tag) for step in built.steps] == [
        (False, 1.5, "step-1")
    ]


@pytest.mark.anyio
async def test_the_asynchronous_shell_does_the_same(tmp_path: Path, daemon: FakeDaemon) -> None:
    seen: list[BuildStep] = []
    program = Program(tmp_path, BUILT)
    template = AsyncTemplate.from_snapshot("tiny").run("true")
    async with daemon.async_client() as client:
        built = await template.build(
            "app", on_step=seen.append, program=str(program), client=client
        )
        with pytest.raises(errors.ProgramMissingError):
            await template.build("app", program=str(tmp_path / "none"), client=client)
    assert ([step.status for step in seen], built.tag) == (["running", "done"], "app")
    assert program.called["recipe"] == TINY.run("true").recipe


def test_the_program_is_called_with_the_options_and_the_recipe(
    tmp_path: Path, daemon: FakeDaemon
) -> None:
    program = Program(tmp_path, BUILT)
    client = daemon.client()
    TINY.build(program=str(program), client=client)
    plain = ["build", "--events", "--file=-"]
    assert program.called["arguments"] == [*plain, "--", "."]
    assert program.called["recipe"] == TINY.recipe
    TINY.build(
        *("app",),
        context=Path("-here"),
        from_snapshot="base",
        no_cache=True,
        keep=True,
        program=str(program),
        client=client,
    )
    options = ["--tag=app", "--from=base", "--no-cache", "--keep", "--", "-here"]
    assert program.called["arguments"] == [*plain, *options]


def test_the_program_gets_the_clients_daemon_and_the_token_not_in_its_arguments(
    tmp_path: Path, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORKD_URL", "FORKD_SOCKET", "FORKD_TOKEN", "FORKD_CA_CERT"):
        monkeypatch.setenv(name, "unix:/another")
    program = Program(tmp_path, BUILT)
    for address, environment in [
        ("unix:/no/such.sock", {"FORKD_SOCKET": "/no/such.sock"}),
        ("http://127.0.0.1:1", {"FORKD_URL": "http://127.0.0.1:1"}),
    ]:
        mounted = httpx.MockTransport(daemon)
        with Client(address, token="secret", ca_cert="/ca.pem", transport=mounted) as client:
            TINY.build("app", program=str(program), client=client)
        called = program.called
        told = {**environment, "FORKD_TOKEN": "secret", "FORKD_CA_CERT": "/ca.pem"}
        assert called["environment"] == told
        assert "secret" not in " ".join(called["arguments"])


def test_the_program_is_found_by_its_variable_else_in_the_path(
    tmp_path: Path, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(tmp_path, BUILT)
    monkeypatch.setenv("FORKD_BIN", str(program))
    assert TINY.build("app", client=daemon.client()).tag == "app"
    monkeypatch.delenv("FORKD_BIN")
    (tmp_path / "forkd").symlink_to(program.path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert TINY.build("app", client=daemon.client()).tag == "app"


@pytest.mark.parametrize("is_there", [False, True])
def test_a_program_that_cannot_be_started_is_named_with_the_remedy(
    tmp_path: Path, daemon: FakeDaemon, *, is_there: bool
) -> None:
    path = tmp_path / "forkd"
    if is_there:
        path.write_text("no program")
    with pytest.raises(errors.ProgramMissingError) as raised:
        TINY.build("app", program=str(path), client=daemon.client())
    for part in (f"`{path}`", "install forkd", "program=", "FORKD_BIN"):
        assert part in str(raised.value)


def failed(**more: Any) -> str:
    return f"step('running'); tell('failed', **{more!r}); sys.exit({more.get('exits', 1)})"


def test_a_step_that_fails_has_its_output_its_exit_code_and_its_sandbox(
    tmp_path: Path, daemon: FakeDaemon
) -> None:
    acts = failed(
        message="exit code 7",
        hint="look",
        number=2,
        step="run x",
        exit_code=7,
        output="so\n",
        sandbox_id="sb-1",
    )
    with pytest.raises(BuildFailedError) as raised:
        TINY.build(program=str(Program(tmp_path, acts)), client=daemon.client())
    error = raised.value
    assert (error.number, error.step, error.exit_code) == (2, "run x", 7)
    assert (error.output, error.sandbox_id, error.hint) == ("so\n", "sb-1", "look")
    assert error.message == "step 2, `run x`: exit code 7"


@pytest.mark.parametrize(
    ("acts", "kind", "text"),
    [
        (failed(message="m", code="tag_taken", hint="h"), errors.TagTakenError, "m"),
        (failed(message="nobody", exits=3), errors.UnreachableError, "nobody"),
        (failed(message="bad recipe"), BuildFailedError, "bad recipe"),
        ("sys.exit('unexpected argument')", BuildFailedError, "with 1: unexpected argument"),
        ("print('a')", errors.NotUnderstoodError, "b'a'"),
        ("print(7)", errors.NotUnderstoodError, "no event"),
    ],
)
def test_what_is_no_fault_of_a_step_has_the_error_of_its_kind(
    tmp_path: Path, daemon: FakeDaemon, acts: str, kind: type[ForkdError], text: str
) -> None:
    with pytest.raises(kind) as raised:
        TINY.build(program=str(Program(tmp_path, acts)), client=daemon.client())
    assert type(raised.value) is kind
    assert text in raised.value.message


def test_an_error_of_the_callback_ends_the_build_in_order(
    tmp_path: Path, daemon: FakeDaemon
) -> None:
    program = Program(tmp_path, PATIENT)

    def on_step(step: BuildStep) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        TINY.build(program=str(program), on_step=on_step, client=daemon.client())
    assert program.was_asked_to_end


def test_an_interrupt_ends_the_build_in_order(tmp_path: Path) -> None:
    program = Program(tmp_path, PATIENT)
    script = (
        "import signal; from forkd_sdk import Template\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "tell = lambda step: print(step.status, flush=True)\n"
        f"Template.from_snapshot('tiny').build(program={str(program)!r}, on_step=tell)\n"
    )
    ours = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert ours.stdout is not None
        assert ours.stdout.readline() == "running\n"
        ours.send_signal(signal.SIGINT)
        _, said = ours.communicate(timeout=30)
    finally:
        ours.kill()
        ours.communicate()
    assert "KeyboardInterrupt" in said
    assert program.was_asked_to_end


@pytest.mark.anyio
async def test_a_build_that_is_cancelled_ends_in_order(tmp_path: Path, daemon: FakeDaemon) -> None:
    program = Program(tmp_path, PATIENT)
    template = AsyncTemplate.from_snapshot("tiny")
    async with daemon.async_client() as client:
        with anyio.move_on_after(30) as scope:
            await template.build(
                program=str(program), on_step=lambda _: scope.cancel(), client=client
            )
    assert scope.cancelled_caught
    assert program.was_asked_to_end


@pytest.mark.anyio
async def test_a_build_that_is_cancelled_before_its_program_runs_leaves_none(
    tmp_path: Path, daemon: FakeDaemon
) -> None:
    program = Program(tmp_path, PATIENT)
    async with daemon.async_client() as client:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await AsyncTemplate.from_snapshot("tiny").build(program=str(program), client=client)
    # One that is left is found by the check for what is not closed.
    assert scope.cancelled_caught
