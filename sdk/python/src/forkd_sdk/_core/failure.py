"""The root of all exceptions, and those that are not of the daemon's catalogue. Those that carry a
result are beside it.
"""

from __future__ import annotations

from typing import ClassVar


class ForkdError(Exception):
    """The root of everything that this package raises."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        """What happened."""
        self.hint = hint
        """What to do about it; may be empty."""

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class ApiError(ForkdError):
    """The daemon refused or failed. Each code of its catalogue has a class below this one."""

    code: ClassVar[str] = "unknown"
    """The stable word of the class."""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        status: int = 0,
        code: str | None = None,
        request_id: str | None = None,
        retry_after_secs: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        """The HTTP status; 0 for a failure that came inside an answer."""
        self.word = code or type(self).code
        """The code as the daemon sent it, also one that this version does not know."""
        self.request_id = request_id
        """Under this name the daemon's log knows the request."""
        self.retry_after_secs = retry_after_secs
        """After how long trying again makes sense."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} [{self.word}, {self.request_id}]" if self.request_id else text


class UnreachableError(ForkdError):
    """No daemon answers there."""


class ConnectionBrokenError(ForkdError):
    """The connection broke off. Whether the request was carried out is not known."""


class RequestTimeoutError(ForkdError, TimeoutError):
    """The daemon did not answer in time. Whether the request was carried out is not known."""


class NotUnderstoodError(ForkdError):
    """What answers is no forkd daemon, or one of another version."""


class ClientClosedError(ForkdError):
    """The client was closed before."""


class SandboxGoneError(ForkdError):
    """The sandbox ended while something in it was being watched."""


class ProgramMissingError(ForkdError):
    """The program `forkd`, which builds templates, is not on this machine."""


class BuildFailedError(ForkdError):
    """A template was not built."""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        number: int | None = None,
        step: str | None = None,
        exit_code: int | None = None,
        output: str = "",
        sandbox_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.number = number
        """The number of the step that failed, from 1; None if it was none of them."""
        self.step = step
        """That step in one line."""
        self.exit_code = exit_code
        """The exit code of its program, if it has one."""
        self.output = output
        """What its program wrote."""
        self.sandbox_id = sandbox_id
        """The sandbox of the step, if it was to be kept."""
