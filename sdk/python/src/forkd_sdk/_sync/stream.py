# Generated from _async/stream.py by sdk/python/scripts/generate.py. Do not edit.
"""An endless answer as an iterator."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Generic, TypeVar, cast

import httpx
import httpx_sse

from .._core.call import Call
from .._core.failure import (
    ConnectionBrokenError,
    ForkdError,
    NotUnderstoodError,
    RequestTimeoutError,
    UnreachableError,
)
from .._core.source import Progress, Source
from .transport import Transport

T = TypeVar("T")


class Stream(Generic[T]):
    """What comes, as it comes. Iterate it; as a context manager it is open from the first line.

    A connection that breaks is made anew where nothing is lost by that. Leaving the `with` block
    closes it, as does its end.
    """

    def __init__(self, transport: Transport, source: Source[T]) -> None:
        self._transport, self._source = transport, source
        self._progress = Progress(source)
        self._response: httpx.Response | None = None
        self._pieces: Generator[httpx_sse.ServerSentEvent, None] | None = None
        self._closed = False

    def __enter__(self) -> Stream[T]:
        if self._pieces is None:
            self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        while not self._closed:
            try:
                item = self._next()
            except (ConnectionBrokenError, RequestTimeoutError, UnreachableError) as error:
                self._open_again(error)
            except BaseException:
                self.close()
                raise
            else:
                if item is not None:
                    return item
        raise StopIteration

    def _next(self) -> T | None:
        """The next item; None if what came is not for the reader, or at the end."""
        if self._pieces is None:
            self._open()
        piece = self._next_piece()
        if piece is None:
            self.close()
            return None
        self._progress.came()
        # A comment that keeps the connection alive comes as an event without data.
        item = self._source.read(piece.event, piece.data, piece.id)
        if self._source.finished:
            self.close()
        return item

    def close(self) -> None:
        """Ends it."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        response, self._response = self._response, None
        pieces, self._pieces = self._pieces, None
        if pieces is not None:
            pieces.close()
        if response is not None:
            response.close()

    def _open(self) -> None:
        self._response = self._transport.open(self._source.request())
        self._pieces = _pieces(self._response, self._source.form)

    def _open_again(self, error: ForkdError) -> None:
        """Drops the connection; the next one is made after a while, or never."""
        self._drop()
        delay = self._progress.next_delay_secs()
        if delay is None:
            self._closed = True
            raise error
        self._transport.sleep(delay)

    def _next_piece(self) -> httpx_sse.ServerSentEvent | None:
        """The next piece; None at the end."""
        pieces = cast("Generator[httpx_sse.ServerSentEvent, None]", self._pieces)
        try:
            return next(pieces)
        except StopIteration:
            if self._source.form == "events" and self._source.resumable:
                raise ConnectionBrokenError("the stream ended before its last event") from None
            return None
        except httpx_sse.SSEError as error:
            raise NotUnderstoodError(f"the answer is no stream of events: {error}") from error
        except httpx.HTTPError as error:
            raise self._transport.failure(error) from error


def _pieces(response: httpx.Response, form: str) -> Generator[httpx_sse.ServerSentEvent, None]:
    if form == "events":
        for event in httpx_sse.EventSource(response).iter_sse():
            yield event
    else:
        for line in response.iter_lines():
            yield httpx_sse.ServerSentEvent(event="line", data=line)


class ByteStream:
    """The bytes of a file, piece by piece. Iterate it inside a `with` block."""

    def __init__(self, transport: Transport, call: Call[None]) -> None:
        self._transport, self._call = transport, call
        self._response: httpx.Response | None = None
        self._pieces: Iterator[bytes] | None = None

    def __enter__(self) -> ByteStream:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> ByteStream:
        return self

    def __next__(self) -> bytes:
        self._open()
        pieces = cast("Iterator[bytes]", self._pieces)
        try:
            return next(pieces)
        except httpx.HTTPError as error:
            raise self._transport.failure(error) from error
        except StopIteration:
            self.close()
            raise

    def close(self) -> None:
        """Ends it."""
        if self._response is not None:
            self._response.close()

    def _open(self) -> None:
        if self._response is None:
            self._response = self._transport.open(self._call)
            self._pieces = self._response.iter_bytes()
