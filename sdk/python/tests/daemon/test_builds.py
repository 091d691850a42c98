"""A build with real guests that is stopped, at several moments, leaves no sandbox behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import anyio
import pytest

from forkd_sdk import AsyncClient, AsyncTemplate, Client

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
