"""What gives a program a daemon of its own leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import with_daemon

CARELESS = """
from forkd_sdk import Sandbox
sandbox = Sandbox.create("tiny")
print(sandbox.info.pid)
raise SystemExit(7)
"""


def test_a_program_that_leaves_a_sandbox_ends_and_the_vm_is_gone() -> None:
    command = [sys.executable, with_daemon.__file__, "--", sys.executable, "-c", CARELESS]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert ran.returncode == 7, ran.stderr
    assert not Path("/proc", ran.stdout.strip()).exists()
