"""Endless answers: what is asked for, and what each event of them means. No I/O.

A source knows how far it has been read, so that a transport that lost the connection can ask for
the rest.
"""

from __future__ import annotations

import base64
import binascii
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

from .. import models
from . import request
from .call import Call, error_of_body
from .decode import decode
from .failure import NotUnderstoodError, SandboxGoneError
from .result import CommandResult, Event, FileChange, OutputChunk

T = TypeVar("T")

# How often a connection is made anew without anything coming through it.
RECONNECTS_MAX = 5

# A stream says something at least every 15 seconds.
SILENCE_SECS_MAX = 60.0


def backoff_secs(attempt: int) -> float:
    """How long to wait before the connection is made anew."""
    return float(min(0.1 * 2**attempt, 2.0))


class Source(ABC, Generic[T]):
    """An endless answer."""

    form: Literal["events", "lines"] = "events"
    """How it is cut into pieces."""
    resumable = False
    """Whether asking again loses nothing."""
    finished = False
    """Whether its last event has come."""

    @abstractmethod
    def request(self) -> Call[None]:
        """What to ask for, from where it was left."""

    @abstractmethod
    def read(self, name: str, data: str, id: str) -> T | None:
        """What an event means; None if it is not for the reader."""


@dataclass
class Exit:
    """How a process ended."""

    exit_code: int
    signal: int | None
    timed_out: bool


class OutputSource(Source[OutputChunk]):
    """The output of a process."""

    resumable = True

    def __init__(self, sandbox_id: str, process_id: str, offset: int | None = None) -> None:
        self.exit: Exit | None = None
        self.lost_bytes = 0
        self._sandbox_id, self._process_id, self._offset = sandbox_id, process_id, offset

    def request(self) -> Call[None]:
        """From the byte after the last one that came."""
        return request.process_output(self._sandbox_id, self._process_id, self._offset)

    def read(self, name: str, data: str, id: str) -> OutputChunk | None:
        """A chunk of output; how it ended is noted."""
        content = _object(data)
        if name in ("stdout", "stderr"):
            chunk = _bytes(content)
            if id.isdigit():
                self._offset = int(id)
            stream = cast("Literal['stdout', 'stderr']", name)
            return OutputChunk(stream, chunk, self._offset or 0)
        if name == "lost":
            self.lost_bytes += int(content.get("bytes", 0))
            if id.isdigit():
                self._offset = int(id)
        elif name == "exit":
            self.exit, self.finished = _exit(content), True
        elif name == "gone":
            reason = content.get("reason", "no reason given")
            raise SandboxGoneError(f"sandbox `{self._sandbox_id}` ended: {reason}")
        return None


def _exit(content: dict[str, Any]) -> Exit:
    code, signal = content.get("exit_code"), content.get("signal")
    if code is None:
        code = 128 + signal if signal is not None else -1
    return Exit(int(code), signal, bool(content.get("timed_out", False)))


class Collector:
    """Gathers a process's output."""

    def __init__(self, args: tuple[str, ...]) -> None:
        self._args = args
        self._parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}

    def add(self, chunk: OutputChunk) -> None:
        """Takes a chunk."""
        self._parts[chunk.stream].append(chunk.data)

    def result(self, source: OutputSource) -> CommandResult:
        """All of it, once the source is finished."""
        if source.exit is None:
            raise NotUnderstoodError("the output ended without saying how the command ended")
        return CommandResult(
            args=self._args,
            exit_code=source.exit.exit_code,
            stdout_bytes=b"".join(self._parts["stdout"]),
            stderr_bytes=b"".join(self._parts["stderr"]),
            signal=source.exit.signal,
            timed_out=source.exit.timed_out,
            lost_bytes=source.lost_bytes,
        )


class WatchSource(Source[FileChange]):
    """What happens to the files below a path.

    It is not resumable: what happens between two connections is seen by nobody.
    """

    def __init__(self, sandbox_id: str, path: str, *, recursive: bool) -> None:
        self._sandbox_id, self._path, self._recursive = sandbox_id, path, recursive

    def request(self) -> Call[None]:
        """The watch."""
        return request.watch_files(self._sandbox_id, self._path, recursive=self._recursive)

    def read(self, name: str, data: str, id: str) -> FileChange | None:  # noqa: ARG002
        """A change."""
        content = _object(data)
        if name in ("created", "modified", "removed", "renamed"):
            kind = cast("Literal['created', 'modified', 'removed', 'renamed']", name)
            return FileChange(kind, str(content.get("path", "")))
        if name == "gone":
            reason = content.get("reason", "no reason given")
            raise SandboxGoneError(f"sandbox `{self._sandbox_id}` ended: {reason}")
        return None


_EVENT_DATA = {
    "sandbox": models.Sandbox,
    "snapshot": models.Snapshot,
    "operation": models.Operation,
}


class EventSource(Source[Event]):
    """What happens in the daemon."""

    resumable = True

    def __init__(
        self,
        *,
        after: str | None,
        type: str | None,
        sandbox: str | None,
        snapshot: str | None,
    ) -> None:
        self._after = after
        self._type, self._sandbox, self._snapshot = type, sandbox, snapshot

    def request(self) -> Call[None]:
        """Those after the last one that came."""
        return request.events(
            after=self._after, type=self._type, sandbox=self._sandbox, snapshot=self._snapshot
        )

    def read(self, name: str, data: str, id: str) -> Event | None:
        """An event."""
        # A sign of life has an id too: what was not asked for is behind it.
        self._after = id or self._after
        if not data:
            return None
        content = _object(data)
        if name == "lost":
            return Event(id, name, None, lost=content.get("events"), json=content)
        kind = _EVENT_DATA.get(name.partition(".")[0])
        about = None if kind is None else decode(kind, content)
        return Event(id, name, cast("Any", about), json=content)


class BuildSource(Source[models.BuildEvent]):
    """The steps of a template build, and the template."""

    form = "lines"

    def __init__(self, build: Call[models.Snapshot]) -> None:
        self._build = build

    def request(self) -> Call[None]:
        """The build, told step by step."""
        return Call(
            self._build.method,
            self._build.path,
            lambda _answer: None,
            body=self._build.body,
            headers={"accept": "application/x-ndjson"},
            timeout_secs=None,
        )

    def read(self, name: str, data: str, id: str) -> models.BuildEvent | None:  # noqa: ARG002
        """A step, or at last the template; a build that failed is raised."""
        if not data.strip():
            return None
        event = decode(models.BuildEvent, _object(data))
        if event.error is not None:
            raise error_of_body(event.error)
        self.finished = event.snapshot is not None
        return event


class Progress(Generic[T]):
    """When a connection is made anew, and when that is given up."""

    def __init__(self, source: Source[T]) -> None:
        self._source = source
        self._attempt = 0

    def came(self) -> None:
        """Something came through."""
        self._attempt = 0

    def next_delay_secs(self) -> float | None:
        """How long to wait before asking again; None if that is over."""
        if not self._source.resumable or self._attempt >= RECONNECTS_MAX:
            return None
        self._attempt += 1
        return backoff_secs(self._attempt - 1)


def _object(data: str) -> dict[str, Any]:
    try:
        content = json.loads(data or "{}")
    except ValueError:
        raise NotUnderstoodError(f"an event's data is no JSON: {data[:80]!r}") from None
    if not isinstance(content, dict):
        raise NotUnderstoodError(f"an event's data is no object: {data[:80]!r}")
    return content


def _bytes(content: dict[str, Any]) -> bytes:
    try:
        if "base64" in content:
            return base64.b64decode(content["base64"])
        return str(content["text"]).encode()
    except (KeyError, TypeError, binascii.Error) as error:
        raise NotUnderstoodError(f"a chunk of output is not understood: {error}") from None
