"""A search with real guests that is interrupted, at several moments, leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from forkd_sdk import Client

# It tells when the search begins; `{call}` runs it.
SCRIPT = """
import asyncio, signal
from forkd_sdk import AsyncSandbox, Sandbox, explore, explore_async

# A shell starts what runs in the background with interrupts ignored, and that is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
VARIANTS = ["import time; time.sleep(1)", "x += 1", "x += 2"]

def synchronous():
    with Sandbox.create("python") as sandbox:
        sandbox.run_code("x = 0")
        print("begins", flush=True)
        explore(sandbox, VARIANTS, "x", keep=2, depth=50)

async def asynchronous():
    async with await AsyncSandbox.create("python") as sandbox:
        await sandbox.run_code("x = 0")
        print("begins", flush=True)
        await explore_async(sandbox, VARIANTS, "x", keep=2, depth=50)

{call}
"""

CALLS = {"synchronous": "synchronous()", "asynchronous": "asyncio.run(asynchronous())"}
END_SECS = 90


@pytest.mark.parametrize("secs", [0.05, 0.6, 2.5])
@pytest.mark.parametrize("shell", CALLS)
def test_an_interrupted_search_leaves_nothing(client: Client, shell: str, secs: float) -> None:
    script = SCRIPT.replace("{call}", CALLS[shell])
    command = [sys.executable, "-c", script]
    search = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert search.stdout is not None
        assert search.stdout.readline() == "begins\n"
        time.sleep(secs)
        search.send_signal(signal.SIGINT)
        _, errors = search.communicate(timeout=END_SECS)
    finally:
        search.kill()
        search.communicate()
    assert "KeyboardInterrupt" in errors
    assert client.sandboxes.list() == []
    assert [each.tag for each in client.snapshots.list() if each.info.branched_from] == []
