"""Builds with real guests: they share the command line's cache, and one that is stopped, at several
moments, leaves no sandbox behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from forkd_sdk import AsyncClient, AsyncTemplate, Client, Template

END_SECS = 90

# It tells when its step begins.
SCRIPT = """
import signal
from forkd_sdk import Template

# A shell starts what runs in the background with interrupts ignored, and that is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
template = Template.from_snapshot("python").run("sleep 1000")
template.build(on_step=lambda step: print(step.status, flush=True))
"""


def test_a_step_of_the_command_line_is_not_run_again(client: Client, tmp_path: Path) -> None:
    template = Template.from_snapshot("python").run("echo 'a \"b\"'").env({"A": "é\n"})
    template = template.workdir("/srv").copy("*", "./", owner="nobody").run(["true", "$A"])
    (tmp_path / "forkd.toml").write_text(template.recipe)
    environment = os.environ | {"FORKD_SOCKET": os.environ["FORKD_URL"].removeprefix("unix:")}
    del environment["FORKD_URL"]
    command = [os.environ["FORKD_BIN"], "build", str(tmp_path)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    built = template.build(context=tmp_path, client=client)
    assert [step.cached for step in built.steps] == [True] * 5
    for tag in [step.snapshot_tag for step in built.steps if step.snapshot_tag]:
        client.snapshots.remove(tag)


@pytest.mark.parametrize("secs", [0, 0.5])
def test_an_interrupted_build_leaves_nothing(client: Client, secs: float) -> None:
    command = [sys.executable, "-c", SCRIPT]
    build = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert build.stdout is not None
        assert build.stdout.readline() == "running\n"
        time.sleep(secs)
        assert len(client.sandboxes.list()) == 1
        build.send_signal(signal.SIGINT)
        _, errors = build.communicate(timeout=END_SECS)
    finally:
        build.kill()
        build.communicate()
    assert "KeyboardInterrupt" in errors
    assert client.sandboxes.list() == []


@pytest.mark.anyio
@pytest.mark.parametrize("secs", [0.01, 3])
async def test_a_cancelled_build_leaves_nothing(url: str, client: Client, secs: float) -> None:
    template = AsyncTemplate.from_snapshot("python").run("sleep 1000")
    async with AsyncClient(url) as asynchronous:
        with anyio.move_on_after(secs) as scope:
            await template.build(client=asynchronous)
    assert scope.cancelled_caught
    assert client.sandboxes.list() == []
