"""The asynchronous transport: the only place that talks to the daemon, and that waits."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import IO, Any, TypeVar, cast

import anyio
import httpx
from anyio import to_thread

from .._core.call import Answer, Call, Content, Pause, error_of, interpret, retry_delay_secs
from .._core.failure import ApiError, ClientClosedError, ForkdError
from .._core.flow import Flow
from .._core.source import SILENCE_SECS_MAX
from .._core.target import Target, broken, silent, unreachable
from .._dial import Way
from .._tls import trust

T = TypeVar("T")

CONNECT_SECS = 10.0
CHUNK_BYTES = 64 * 1024


class AsyncTransport:
    """Sends calls to one daemon.

    Guarantees: it connects to the target only, whatever proxy the environment names; a failure is a
    `ForkdError`; nothing is repeated but what was refused with `Retry-After`.
    """

    def __init__(
        self,
        target: Target,
        *,
        token: str | None,
        max_retries: int,
        ca_cert: str | None = None,
        mounted: httpx.AsyncBaseTransport | None = None,
        shared: bool = False,
    ) -> None:
        self.target = target
        self._token, self._max_retries = token, max_retries
        self._mounted, self._ca_cert = mounted, ca_cert
        self._shared = shared
        self._tenants: weakref.WeakSet[object] = weakref.WeakSet()
        self._http: httpx.AsyncClient | None = None
        self._closed = False

    @property
    def way(self) -> Way:
        """How the daemon is reached without HTTP."""
        if self._closed:
            raise ClientClosedError("the client is closed", hint="make another one")
        return Way(self.target, self._token, self._ca_cert)

    def enter(self, tenant: object) -> None:
        """Notes an object that uses the connections."""
        self._tenants.add(tenant)

    async def leave(self, tenant: object) -> None:
        """The object is done. The last one closes connections that no client is in charge of."""
        self._tenants.discard(tenant)
        if self._shared and not self._tenants:
            await self._drop()

    async def close(self) -> None:
        """Closes all connections for good."""
        self._closed = True
        await self._drop()

    async def _drop(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    @property
    def http(self) -> httpx.AsyncClient:
        """The HTTP client, made when it is needed."""
        if self._closed:
            raise ClientClosedError("the client is closed", hint="make another one")
        if self._http is None:
            headers = {"user-agent": "forkd-sdk-python"}
            if self._token:
                headers["authorization"] = f"Bearer {self._token}"
            transport = self._mounted or httpx.AsyncHTTPTransport(
                uds=self.target.socket,
                limits=_LIMITS,
                verify=trust(self.target, self._ca_cert),
            )
            self._http = httpx.AsyncClient(
                base_url=self.target.base_url,
                headers=headers,
                transport=transport,
                trust_env=False,
            )
        return self._http

    def _request(self, call: Call[Any], timeout: httpx.Timeout) -> httpx.Request:
        body: dict[str, Any] = {}
        if call.content is not None:
            body["content"] = _content(call.content)
        elif call.body is not None:
            body["json"] = call.body
        return self.http.build_request(
            call.method,
            call.path,
            params=dict(call.params) or None,
            headers=dict(call.headers),
            timeout=timeout,
            **body,
        )

    async def send(self, call: Call[T]) -> T:
        """The answer's meaning."""
        attempt = 0
        while True:
            try:
                return interpret(call, await self._send_once(call))
            except ApiError as error:
                delay = retry_delay_secs(call, error, attempt, self._max_retries)
                if delay is None:
                    raise
                attempt += 1
                await anyio.sleep(delay)

    async def _send_once(self, call: Call[Any]) -> Answer:
        timeout = httpx.Timeout(call.timeout_secs, connect=CONNECT_SECS)
        request = self._request(call, timeout)
        try:
            response = await self.http.send(request)
        except httpx.HTTPError as error:
            raise self.failure(error) from error
        return Answer(response.status_code, response.headers, response.content)

    async def open(self, call: Call[None]) -> httpx.Response:
        """An endless answer; whoever asks closes it."""
        timeout = httpx.Timeout(CONNECT_SECS, read=call.timeout_secs and SILENCE_SECS_MAX)
        request = self._request(call, timeout)
        try:
            response = await self.http.send(request, stream=True)
            if response.status_code < 300:
                return response
            try:
                content = await response.aread()
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise self.failure(error) from error
        raise error_of(Answer(response.status_code, response.headers, content))

    async def run(self, flow: Flow[T]) -> T:
        """Drives a flow to its end."""
        given: Any = None
        failure: ForkdError | None = None
        while True:
            try:
                step = flow.send(given) if failure is None else flow.throw(failure)
            except StopIteration as stop:
                return cast("T", stop.value)
            given, failure = None, None
            if isinstance(step, Pause):
                await anyio.sleep(step.secs)
                continue
            try:
                given = await self.send(step)
            except ForkdError as error:
                failure = error

    async def sleep(self, secs: float) -> None:
        """Waits."""
        await anyio.sleep(secs)

    def failure(self, error: httpx.HTTPError) -> ForkdError:
        """What an error of the connection means."""
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return unreachable(self.target, error)
        if isinstance(error, httpx.TimeoutException):
            return silent(self.target)
        return broken(self.target, error)


# A search may have many children at work at once.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=30)


def _content(content: Content) -> bytes | AsyncIterator[bytes]:
    if isinstance(content, bytes):
        return content
    if isinstance(content, AsyncIterable):
        return content.__aiter__()
    return _in_threads(content)


async def _in_threads(content: Any) -> AsyncIterator[bytes]:
    """Pieces of a file or iterable, whose reading may block."""
    if hasattr(content, "read"):
        file = cast("IO[bytes]", content)
        while chunk := await to_thread.run_sync(file.read, CHUNK_BYTES):
            yield chunk
        return
    pieces, end = iter(content), object()
    while (piece := await to_thread.run_sync(next, pieces, end)) is not end:
        yield cast("bytes", piece)


Callback = Callable[[str], object]
"""Is called with a piece of output; may be a coroutine function."""


async def call_back(callback: Callback | None, text: str) -> None:
    """Calls it, if there is one, and awaits what is to be awaited."""
    if callback is None:
        return
    outcome = callback(text)
    if isinstance(outcome, Awaitable):
        await outcome
