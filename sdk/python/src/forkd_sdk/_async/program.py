"""Runs a program to its end and reads its lines, asynchronously."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import anyio
from anyio.abc import Process

from .._core.building import missing

# For a program that was asked to end.
STOP_SECS = 60


async def follow(
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
            # A program whose start is cancelled would be nobody's.
            with anyio.CancelScope(shield=True):
                process = await anyio.open_process(
                    command, stdin=given, stderr=said, env=environment
                )
        except OSError as error:
            raise missing(command[0], error) from error
        try:
            async for line in _lines(process):
                on_line(line)
            exit_code = await process.wait()
        finally:
            await _end(process)
        said.seek(0)
        return exit_code, said.read().decode(errors="replace")


async def _lines(process: Process) -> AsyncIterator[bytes]:
    assert process.stdout is not None  # noqa: S101 - it was asked for
    parts: list[bytes] = []
    async for chunk in process.stdout:
        head, *more = chunk.split(b"\n")
        parts.append(head)
        for piece in more:
            yield b"".join(parts)
            parts = [piece]


async def _end(process: Process) -> None:
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.terminate()
            with anyio.move_on_after(STOP_SECS) as patience:
                await process.wait()
            if patience.cancelled_caught:
                process.kill()
        await process.aclose()
