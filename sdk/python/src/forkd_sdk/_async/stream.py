"""An endless answer as an iterator."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
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
from .transport import AsyncTransport

T = TypeVar("T")


class AsyncStream(Generic[T]):
    """What comes, as it comes. Iterate it; as a context manager it is open from the first line.

    A connection that breaks is made anew where nothing is lost by that. Leaving the `with` block
    closes it, as does its end.
    """

    def __init__(self, transport: AsyncTransport, source: Source[T]) -> None:
        self._transport, self._source = transport, source
        self._progress = Progress(source)
        self._response: httpx.Response | None = None
        self._pieces: AsyncGenerator[httpx_sse.ServerSentEvent, None] | None = None
        self._closed = False

    async def __aenter__(self) -> AsyncStream[T]:
        if self._pieces is None:
            await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncStream[T]:
        return self

    async def __anext__(self) -> T:
        while not self._closed:
            try:
                item = await self._next()
            except (ConnectionBrokenError, RequestTimeoutError, UnreachableError) as error:
                await self._open_again(error)
            except BaseException:
                await self.close()
                raise
            else:
                if item is not None:
                    return item
        raise StopAsyncIteration

    async def _next(self) -> T | None:
        """The next item; None if what came is not for the reader, or at the end."""
        if self._pieces is None:
            await self._open()
        piece = await self._next_piece()
        if piece is None:
            await self.close()
            return None
        self._progress.came()
        # A comment that keeps the connection alive comes as an event without data.
        item = self._source.read(piece.event, piece.data, piece.id)
        if self._source.finished:
            await self.close()
        return item

    async def close(self) -> None:
        """Ends it."""
        self._closed = True
        await self._drop()

    async def _drop(self) -> None:
        response, self._response = self._response, None
        pieces, self._pieces = self._pieces, None
        if pieces is not None:
            await pieces.aclose()
        if response is not None:
            await response.aclose()

    async def _open(self) -> None:
        self._response = await self._transport.open(self._source.request())
        self._pieces = _pieces(self._response, self._source.form)

    async def _open_again(self, error: ForkdError) -> None:
        """Drops the connection; the next one is made after a while, or never."""
        await self._drop()
        delay = self._progress.next_delay_secs()
        if delay is None:
            self._closed = True
            raise error
        await self._transport.sleep(delay)

    async def _next_piece(self) -> httpx_sse.ServerSentEvent | None:
        """The next piece; None at the end."""
        pieces = cast("AsyncGenerator[httpx_sse.ServerSentEvent, None]", self._pieces)
        try:
            return await anext(pieces)
        except StopAsyncIteration:
            if self._source.form == "events" and self._source.resumable:
                raise ConnectionBrokenError("the stream ended before its last event") from None
            return None
        except httpx_sse.SSEError as error:
            raise NotUnderstoodError(f"the answer is no stream of events: {error}") from error
        except httpx.HTTPError as error:
            raise self._transport.failure(error) from error


async def _pieces(
    response: httpx.Response, form: str
) -> AsyncGenerator[httpx_sse.ServerSentEvent, None]:
    if form == "events":
        async for event in httpx_sse.EventSource(response).aiter_sse():
            yield event
    else:
        async for line in response.aiter_lines():
            yield httpx_sse.ServerSentEvent(event="line", data=line)


class AsyncByteStream:
    """The bytes of a file, piece by piece. Iterate it inside a `with` block."""

    def __init__(self, transport: AsyncTransport, call: Call[None]) -> None:
        self._transport, self._call = transport, call
        self._response: httpx.Response | None = None
        self._pieces: AsyncIterator[bytes] | None = None

    async def __aenter__(self) -> AsyncByteStream:
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncByteStream:
        return self

    async def __anext__(self) -> bytes:
        await self._open()
        pieces = cast("AsyncIterator[bytes]", self._pieces)
        try:
            return await anext(pieces)
        except httpx.HTTPError as error:
            raise self._transport.failure(error) from error
        except StopAsyncIteration:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends it."""
        if self._response is not None:
            await self._response.aclose()

    async def _open(self) -> None:
        if self._response is None:
            self._response = await self._transport.open(self._call)
            self._pieces = self._response.aiter_bytes()
