# Generated from _async/commands.py by sdk/python/scripts/generate.py. Do not edit.
"""Commands in a sandbox: run and wait, or start and come back to."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence

from .. import models
from .._core import request
from .._core.result import CommandResult, OutputChunk
from .._core.source import Collector, OutputSource
from .stream import Stream
from .transport import Callback, Transport, call_back


class Process:
    """A command that was started in a sandbox and may still run.

    Iterate it for its output. Nothing is lost while it is read; of what nobody reads the last MiB
    is kept.
    """

    def __init__(self, transport: Transport, sandbox_id: str, process: models.Process) -> None:
        self._transport, self._sandbox_id = transport, sandbox_id
        self.info = process
        """What was last heard of it."""

    @property
    def id(self) -> str:
        """Its name, `pr-` and hexadecimal digits."""
        return self.info.id

    @property
    def pid(self) -> int | None:
        """Its process id in the sandbox."""
        return self.info.pid

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.info.state}: {' '.join(self.info.args)}>"

    def output(self, offset: int | None = None) -> Stream[OutputChunk]:
        """Its output until it ends: all that is kept, or what comes from this offset on."""
        return Stream(self._transport, self._source(offset))

    def __iter__(self) -> Iterator[OutputChunk]:
        return self.output().__iter__()

    def wait(
        self,
        *,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Waits until it has ended; what it wrote, as far as it is kept, and how it ended.

        With `check` another exit code than 0 raises `CommandFailedError`.
        """
        source = self._source(None)
        collector = Collector(tuple(self.info.args))
        with Stream(self._transport, source) as output:
            for chunk in output:
                collector.add(chunk)
                call_back(on_stdout if chunk.stream == "stdout" else on_stderr, chunk.text)
        result = collector.result(source)
        return result.raise_for_exit() if check or result.timed_out else result

    def refresh(self) -> models.Process:
        """Asks how it is; also in `info`."""
        self.info = self._transport.send(request.process(self._sandbox_id, self.id))
        return self.info

    def send_stdin(self, data: str | bytes, *, eof: bool = False) -> None:
        """Writes to its standard input, and with `eof` closes it."""
        content = data.encode() if isinstance(data, str) else data
        call = request.write_stdin(self._sandbox_id, self.id, content, eof=eof)
        self._transport.send(call)

    def close_stdin(self) -> None:
        """Closes its standard input."""
        self.send_stdin(b"", eof=True)

    def send_signal(self, signal: str | int) -> None:
        """Sends it a signal, such as `"INT"` or `signal.SIGTERM`."""
        self._transport.send(request.signal_process(self._sandbox_id, self.id, signal))

    def kill(self) -> None:
        """Ends it at once. What it wrote can still be read."""
        self.send_signal("KILL")

    def resize(self, rows: int, cols: int) -> None:
        """Tells it the size of its terminal."""
        self._transport.send(request.resize_process(self._sandbox_id, self.id, rows, cols))

    def remove(self) -> None:
        """Kills it if it runs, and forgets it."""
        self._transport.send(request.remove_process(self._sandbox_id, self.id))

    def _source(self, offset: int | None) -> OutputSource:
        return OutputSource(self._sandbox_id, self.id, offset)


class Commands:
    """Runs programs in a sandbox."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport, self._id = transport, sandbox_id

    def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = 60,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Runs a command to its end.

        Text is run by `/bin/sh`; a list is program and arguments, with no shell. `on_stdout` and
        `on_stderr` are called with each piece of output when it comes. With `check` another exit
        code than 0 raises `CommandFailedError`. When its `timeout` in seconds is over it is
        killed, and `CommandTimeoutError` is raised, whose `result` has the output until then.
        It runs as `user`, `USER` or `USER:GROUP` by name or number; without it, as the image says.
        """
        if on_stdout is None and on_stderr is None:
            text = stdin if isinstance(stdin, str) else None
            encoded = base64.b64encode(stdin).decode() if isinstance(stdin, bytes) else None
            call = request.exec_command(
                self._id,
                command,
                env=env,
                cwd=cwd,
                user=user,
                stdin=text,
                stdin_base64=encoded,
                timeout=timeout,
            )
            result = self._transport.send(call)
            return result.raise_for_exit() if check or result.timed_out else result
        process = self.start(
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=stdin is not None,
            timeout=timeout,
            hold_output=True,
        )
        try:
            if stdin is not None:
                process.send_stdin(stdin, eof=True)
            return process.wait(on_stdout=on_stdout, on_stderr=on_stderr, check=check)
        finally:
            process.remove()

    def start(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bool = False,
        timeout: float | None = None,
        tty: tuple[int, int] | None = None,
        hold_output: bool = False,
    ) -> Process:
        """Starts a command and does not wait for it.

        With `stdin` its standard input stays open for `send_stdin`. `tty` gives it a terminal of so
        many rows and columns. With `hold_output` nothing of its output is dropped until it is read
        for the first time; it waits when there is more than is kept. A child of a branch goes on
        with the program, but not with this object: the output that the program makes there goes
        nowhere.
        """
        call = request.start_process(
            self._id,
            command,
            env=env,
            cwd=cwd,
            user=user,
            stdin=stdin,
            timeout=timeout,
            tty=tty,
            hold_output=hold_output,
        )
        return Process(self._transport, self._id, self._transport.send(call))

    def list(self) -> list[Process]:
        """Those that were started in this sandbox and are not forgotten."""
        found = self._transport.send(request.processes(self._id))
        return [Process(self._transport, self._id, process) for process in found]

    def connect(self, process_id: str) -> Process:
        """One that was started earlier, perhaps by another program."""
        process = self._transport.send(request.process(self._id, process_id))
        return Process(self._transport, self._id, process)
