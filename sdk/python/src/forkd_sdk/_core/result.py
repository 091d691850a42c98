"""What commands and code gave, and what streams bring, as users see it."""

from __future__ import annotations

import base64
import binascii
import json
import signal as signals
from dataclasses import dataclass, field
from typing import Any, Literal

from .. import models
from .failure import ForkdError

# By these the daemon tells text from bytes, too.
_TEXT_ENDINGS = ("json", "xml", "javascript")


class _Printed:
    """What has printed something."""

    stdout_bytes: bytes
    stderr_bytes: bytes

    @property
    def stdout(self) -> str:
        """Standard output as text."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error as text."""
        return self.stderr_bytes.decode(errors="replace")


class CommandFailedError(ForkdError):
    """A command ended with another exit code than 0."""

    def __init__(self, message: str, result: CommandResult) -> None:
        super().__init__(message)
        self.result = result
        """What it wrote and how it ended."""


class CommandTimeoutError(CommandFailedError, TimeoutError):
    """A command's time was over, so it was killed."""


class CodeError(ForkdError):
    """Python code raised an exception, or the interpreter ended."""

    def __init__(self, message: str, execution: Execution) -> None:
        super().__init__(message)
        self.execution = execution
        """What it printed until then, and the traceback."""


class CodeTimeoutError(CodeError, TimeoutError):
    """Python code's time was over, so it was interrupted."""


@dataclass(frozen=True)
class CommandResult(_Printed):
    """What a command wrote and how it ended."""

    args: tuple[str, ...]
    """Program and arguments."""
    exit_code: int
    """Exit code, or 128 + signal."""
    stdout_bytes: bytes
    """Standard output."""
    stderr_bytes: bytes
    """Standard error."""
    signal: int | None = None
    """The signal that ended it."""
    timed_out: bool = False
    """It was killed because its time was over."""
    lost_bytes: int = 0
    """Bytes of output that were dropped before anybody read them."""

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0 and not self.timed_out

    def raise_for_exit(self) -> CommandResult:
        """Itself, or `CommandFailedError` if the exit code is not 0."""
        program = self.args[0] if self.args else "the command"
        if self.timed_out:
            raise CommandTimeoutError(f"`{program}` was killed: its time was over", self)
        if self.exit_code == 0:
            return self
        how = f"ended with exit code {self.exit_code}"
        if self.signal is not None:
            how = f"was ended by {_signal_name(self.signal)}"
        last = self.stderr.strip().rsplit("\n", 1)[-1][:200]
        raise CommandFailedError(f"`{program}` {how}" + (f": {last}" if last else ""), self)


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class OutputChunk:
    """A piece of what a command wrote."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    """The bytes; a character is not cut in two."""
    offset: int
    """Offset in the whole output of the byte after these; reading can go on from here."""

    @property
    def text(self) -> str:
        """The bytes as text."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True)
class Part:
    """A value in one form."""

    mime: str
    """Its media type, such as `image/png`."""
    data: str
    """As it came: text, or base64 for a binary type."""

    @property
    def is_text(self) -> bool:
        """Whether `data` is the content itself."""
        return self.mime.startswith("text/") or self.mime.endswith(_TEXT_ENDINGS)

    @property
    def content(self) -> bytes:
        """The bytes."""
        if self.is_text:
            return self.data.encode()
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError):
            # A program in the guest may call any text an image.
            return self.data.encode()


class _Value:
    """A value that has forms."""

    parts: tuple[Part, ...]

    @property
    def text(self) -> str | None:
        """The value as text."""
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        """The value as HTML."""
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        """The value as Markdown."""
        return self._text("text/markdown")

    @property
    def latex(self) -> str | None:
        """The value as LaTeX."""
        return self._text("text/latex")

    @property
    def svg(self) -> str | None:
        """The value as SVG."""
        return self._text("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        """The value as a PNG image."""
        part = self.part("image/png")
        return None if part is None else part.content

    @property
    def jpeg(self) -> bytes | None:
        """The value as a JPEG image."""
        part = self.part("image/jpeg")
        return None if part is None else part.content

    @property
    def json(self) -> Any:
        """The value as what its JSON means; None if it has no such form."""
        return self._json("application/json")

    def part(self, mime: str) -> Part | None:
        """The value in this form."""
        return next((part for part in self.parts if part.mime == mime), None)

    @property
    def chart(self) -> Any:
        """The data of the charts of a figure, as E2B has them; None if it is no figure."""
        return self._json("application/vnd.forkd.chart+json")

    @property
    def table(self) -> Any:
        """The columns of a table, each with its values; None if it is no table."""
        return self._json("application/vnd.forkd.table+json")

    def _text(self, mime: str) -> str | None:
        part = self.part(mime)
        return None if part is None else part.data

    def _json(self, mime: str) -> Any:
        part = self.part(mime)
        return None if part is None else json.loads(part.data)


@dataclass(frozen=True)
class Display(_Value):
    """A value that code showed: by `display`, or as a figure."""

    parts: tuple[Part, ...] = ()
    """The value in each form that it has."""

    def _repr_mimebundle_(self, **_wanted: Any) -> dict[str, Any]:
        """For notebooks: shown as the value would be."""
        return _bundle(self.parts)


@dataclass(frozen=True)
class Execution(_Printed, _Value):
    """What Python code gave."""

    stdout_bytes: bytes
    """What it printed."""
    stderr_bytes: bytes
    """What it printed to standard error."""
    result: str | None
    """`repr` of the last expression; None when there is none or it is `None`."""
    error: str | None
    """The traceback, or what happened to the interpreter; None if all went well."""
    parts: tuple[Part, ...] = ()
    """The last expression's value in each form that it has."""
    displays: tuple[Display, ...] = ()
    """What it showed before, in the order in which it did."""
    displays_left_out: int = 0
    """How many values it showed for which there was no room."""
    timed_out: bool = False
    """Its time was over."""
    state_lost: bool = False
    """The interpreter ended: variables are gone."""

    @property
    def ok(self) -> bool:
        """Whether no exception was raised."""
        return self.error is None

    @property
    def text(self) -> str | None:
        """The value as text."""
        text = super().text
        return self.result if text is None else text

    def raise_for_error(self) -> Execution:
        """Itself, or `CodeError` if there was an exception."""
        if self.timed_out:
            raise CodeTimeoutError("the code was interrupted: its time was over", self)
        if self.error is not None:
            last = self.error.strip().rsplit("\n", 1)[-1]
            raise CodeError(last or "the code failed", self)
        return self

    def _repr_mimebundle_(self, **_wanted: Any) -> dict[str, Any]:
        """For notebooks: shown as the value would be."""
        return {"text/plain": self.result or ""} | _bundle(self.parts)


def _bundle(parts: tuple[Part, ...]) -> dict[str, Any]:
    def content(part: Part) -> Any:
        return json.loads(part.data) if part.mime.endswith("json") else part.data

    return {part.mime: content(part) for part in parts}


@dataclass(frozen=True)
class FileChange:
    """Something happened to a file."""

    kind: Literal["created", "modified", "removed", "renamed"]
    path: str


@dataclass(frozen=True)
class Event:
    """Something happened to a sandbox, a snapshot or an operation."""

    id: str
    """Where it stands among the events; `events(after=...)` goes on from there."""
    type: models.EventType
    """Such as `sandbox.dead` or `snapshot.ready`."""
    data: models.Sandbox | models.Snapshot | models.Operation | None
    """What it happened to, as it is now; None in an event of type `lost`."""
    lost: int | None = None
    """In an event of type `lost`: how many are no longer known; None if the daemon was started
    anew.
    """
    json: dict[str, Any] = field(default_factory=dict)
    """The data as it came."""


def exact(text: str, encoded: str | None) -> bytes:
    """The bytes behind a pair of text and optional base64."""
    return text.encode() if encoded is None else base64.b64decode(encoded)


def command_result(args: tuple[str, ...], answer: models.ExecAnswer) -> CommandResult:
    """What `exec` answered."""
    return CommandResult(
        args=args,
        exit_code=answer.exit_code,
        stdout_bytes=exact(answer.stdout, answer.stdout_base64),
        stderr_bytes=exact(answer.stderr, answer.stderr_base64),
        signal=answer.signal,
        timed_out=answer.timed_out,
    )


def _parts(found: list[models.EvalPart]) -> tuple[Part, ...]:
    return tuple(Part(part.mime, part.data) for part in found)


def execution(answer: models.EvalAnswer) -> Execution:
    """What `eval` answered."""
    return Execution(
        stdout_bytes=exact(answer.stdout, answer.stdout_base64),
        stderr_bytes=exact(answer.stderr, answer.stderr_base64),
        result=answer.result,
        error=answer.error,
        parts=_parts(answer.parts),
        displays=tuple(Display(_parts(display.parts)) for display in answer.displays),
        displays_left_out=answer.displays_left_out or 0,
        timed_out=answer.timed_out,
        state_lost=answer.state_lost,
    )
