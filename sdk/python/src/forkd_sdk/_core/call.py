"""One request and how its answer is read. No I/O."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Generic, TypeVar

from .. import models
from .._codes import BY_CODE
from .decode import decode
from .failure import ApiError, NotUnderstoodError

T = TypeVar("T")

Content = bytes | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]

# For requests that do not wait for a guest.
TIMEOUT_SECS = 60.0


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """Names are in lower case."""
    content: bytes


@dataclass(frozen=True)
class Call(Generic[T]):
    """What to send, and what the answer means."""

    method: str
    path: str
    parse: Callable[[Answer], T]
    params: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    """Sent as JSON."""
    content: Content | None = None
    """Sent as it is."""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_secs: float | None = TIMEOUT_SECS
    """How long the answer may take."""
    patient: bool = False
    """Repeat it as long as it is refused with `Retry-After`."""


@dataclass(frozen=True)
class Pause:
    """A flow wants to wait."""

    secs: float


def interpret(call: Call[T], answer: Answer) -> T:
    """The answer's meaning, or the daemon's error."""
    if answer.status >= 300:
        raise error_of(answer)
    return call.parse(answer)


def error_of(answer: Answer) -> ApiError | NotUnderstoodError:
    """The exception for an answer that is not a success."""
    try:
        body = decode(models.ErrorBody, json.loads(answer.content))
    except (ValueError, NotUnderstoodError):
        text = answer.content[:200].decode(errors="replace")
        return NotUnderstoodError(f"the answer has the status {answer.status}: {text!r}")
    retry = answer.headers.get("retry-after", "")
    return error_of_body(
        body,
        status=answer.status,
        request_id=answer.headers.get("x-request-id"),
        retry_after_secs=float(retry) if retry.isdigit() else None,
    )


def error_of_body(
    body: models.ErrorBody,
    *,
    status: int = 0,
    request_id: str | None = None,
    retry_after_secs: float | None = None,
) -> ApiError:
    """The exception of the class that belongs to the code."""
    return BY_CODE.get(body.code, ApiError)(
        body.error,
        hint=body.hint,
        status=status,
        code=body.code,
        request_id=request_id,
        retry_after_secs=retry_after_secs,
    )


def retry_delay_secs(
    call: Call[Any], error: ApiError, attempt: int, retries_max: int
) -> float | None:
    """How long to wait before the same again; None if that is pointless.

    Only a refusal with `Retry-After` is repeated: nothing was begun then.
    """
    if error.retry_after_secs is None:
        return None
    if attempt >= retries_max and not call.patient:
        return None
    return error.retry_after_secs


def nothing(_answer: Answer) -> None:
    """For answers without content."""


def raw(answer: Answer) -> bytes:
    """For answers that are a file."""
    return answer.content


def text(answer: Answer) -> str:
    """For answers that are text."""
    return answer.content.decode(errors="replace")


def one(kind: type[T]) -> Callable[[Answer], T]:
    """For answers that are one object."""
    return lambda answer: decode(kind, _json(answer))


def many(kind: type[T]) -> Callable[[Answer], list[T]]:
    """For answers that are a list."""

    def parse(answer: Answer) -> list[T]:
        items = _json(answer)
        if not isinstance(items, list):
            raise NotUnderstoodError("the answer is no list")
        return [decode(kind, item) for item in items]

    return parse


def _json(answer: Answer) -> Any:
    try:
        return json.loads(answer.content)
    except ValueError as error:
        raise NotUnderstoodError(f"the answer is no JSON: {error}") from None
