"""A daemon of its own for a program that talks to one.

    python3 sdk/conformance/with_daemon.py -- npm test

The program finds it by `FORKD_URL`, and with E2B's packages by their own variables; SDKs find the
program that builds by `FORKD_BIN`. The daemon works in temporary places; with the program all of it
goes: its sandboxes, its processes, its files. `FORKD` names the program `forkd`;
`FORKD_IMAGE_DIR`, `FORKD_SHIM` and `FORKD_ACCEL` mean what they mean to it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Trying out KVM takes seconds of it.
START_SECS = 60
# All sandboxes are removed and snapshots made durable.
STOP_SECS = 120
LOG_LINES_SHOWN = 20
# They would lead to another daemon.
FOREIGN = ("FORKD_HOME", "FORKD_HOT_DIR", "FORKD_SOCKET", "FORKD_STATE_DIR", "FORKD_URL")


class NotStartedError(RuntimeError):
    """The daemon did not start."""


def program() -> str:
    """The program that `FORKD` names, else the one built here, else the installed one."""
    built = Path(__file__).resolve().parents[2] / "target" / "release" / "forkd"
    found = os.environ.get("FORKD") or (str(built) if built.exists() else shutil.which("forkd"))
    if not found:
        raise NotStartedError("forkd is not installed; set FORKD to the program")
    return found


@contextmanager
def own_daemon() -> Iterator[str]:
    """A running daemon; gives its address."""
    # Not below `TMPDIR`: it may be long, and the path of a socket has at most 107 bytes.
    home = Path(tempfile.mkdtemp(prefix="fkc-", dir="/tmp"))
    hot = Path(tempfile.mkdtemp(prefix="fkc-", dir="/dev/shm"))
    address = home / "s"
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    command: list[str | Path] = [
        program(),
        "serve",
        "--home",
        home / "h",
        "--hot-dir",
        hot,
        "--socket",
        address,
        # Else they would outlive their daemon.
        "--stop-sandboxes",
        # A recipe has servers on this machine.
        "--network",
        "any",
        "--preview-listen",
        "127.0.0.1:0",
        "--e2b-listen",
        "127.0.0.1:0",
        "--e2b-template",
        "base=python,code-interpreter-v1=python",
    ]
    try:
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603
                command, env=environment, stderr=log, stdout=log, start_new_session=True
            )
        try:
            _until_it_answers(process, address, home / "log")
            yield f"unix:{address}"
        finally:
            _stop(process)
    finally:
        for place in (home, hot):
            shutil.rmtree(place, ignore_errors=True)


def variables(address: str) -> dict[str, str]:
    """What programs find the daemon at this address by, and the program that builds: with our SDKs,
    and with E2B's packages.
    """
    home = Path(address.removeprefix("unix:")).parent / "h"
    said = subprocess.run(  # noqa: S603
        [program(), "e2b", "env", "--home", home], capture_output=True, text=True, check=True
    )
    lines = said.stdout.splitlines()
    pairs = (line.removeprefix("export ").partition("=") for line in lines)
    ours = {"FORKD_URL": address, "FORKD_BIN": program()}
    return {**ours, **{name: value for name, _, value in pairs}}


def _until_it_answers(process: subprocess.Popen[bytes], address: Path, log: Path) -> None:
    until = time.monotonic() + START_SECS
    while process.poll() is None and time.monotonic() < until:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(address)) == 0:
                return
        time.sleep(0.05)
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    raise NotStartedError("\n".join(["the daemon did not start; its log ends with:", *lines]))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> int:
    """Runs a program with a daemon of its own, and ends with its exit code."""
    command = sys.argv[2:] if sys.argv[1:2] == ["--"] else sys.argv[1:]
    if not command:
        print("usage: with_daemon.py -- PROGRAM ARGUMENTS", file=sys.stderr)
        return 2
    with own_daemon() as url:
        return subprocess.run(command, env=os.environ | variables(url)).returncode  # noqa: S603, PLW1510


if __name__ == "__main__":
    sys.exit(main())
