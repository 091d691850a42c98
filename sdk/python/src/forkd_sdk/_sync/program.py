"""Runs a program to its end and reads its lines, synchronously."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence

from .._core.building import missing

# For a program that was asked to end.
STOP_SECS = 60


def follow(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    text: str,
    on_line: Callable[[bytes], object],
) -> tuple[int, str]:
    """Gives the program `text`, and `on_line` its lines; returns its exit code and what it wrote
    to standard error.

    Guarantees: whatever ends this, the program has ended; it is asked to first, so that it can end
    in order. Not by an interrupt, which is ignored below a shell that runs us in the background.
    """
    # Files have no other end that could wait for us.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(text.encode())
        given.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603 - the user names the program
                command, stdin=given, stdout=subprocess.PIPE, stderr=said, env=environment
            )
        except OSError as error:
            raise missing(command[0], error) from error
        assert process.stdout is not None  # noqa: S101 - it was asked for
        with process.stdout:
            try:
                for line in process.stdout:
                    on_line(line.rstrip(b"\n"))
                exit_code = process.wait()
            except BaseException:
                _stop(process)
                raise
        said.seek(0)
        return exit_code, said.read().decode(errors="replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECS)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
