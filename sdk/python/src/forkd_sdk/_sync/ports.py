"""The TCP ports of a sandbox."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import httpx

from .. import models
from .._core import request
from .._core.preview import preview_url
from .._dial import connect
from .._forward import Forwarder, LocalPort, private_socket
from .transport import Transport

T = TypeVar("T")


class Forward(LocalPort):
    """A local port whose connections are passed on to a port of a sandbox, inside a `with` block.

    A connection that the sandbox does not take is reset, and the logger `forkd_sdk` says why.
    """

    def __init__(self, forwarder: Forwarder, host: str, port: int) -> None:
        super().__init__(forwarder, host, port)
        self._loop: _Loop | None = None

    def close(self) -> None:
        """Ends it with all its connections."""
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.run(self._forwarder.stop())
            finally:
                loop.end()

    def __enter__(self) -> Forward:
        self._loop = _Loop()
        try:
            self.host, self.port = self._loop.run(self._forwarder.start(self.host, self.port))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _PortTransport(httpx.HTTPTransport):
    """Raises what the daemon has said instead of that the connection broke off."""

    def __init__(self, forwarder: Forwarder, path: str) -> None:
        super().__init__(uds=path)
        self._forwarder = forwarder

    def handle_request(self, asked: httpx.Request) -> httpx.Response:
        try:
            return super().handle_request(asked)
        except httpx.TransportError as error:
            if (refusal := self._forwarder.take_refusal()) is not None:
                raise refusal from error
            raise


class Ports:
    """Reaches what listens in a sandbox, on whatever address, loopback too. It does not matter what
    the sandbox itself may reach.
    """

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport, self._id = transport, sandbox_id

    def list(self) -> list[models.Port]:
        """What is listened on, by number and address."""
        return self._transport.send(request.ports(self._id))

    def connect(self, port: int) -> socket.socket:
        """A byte stream to a port: a connected socket.

        Raises `PortClosedError` if nothing listens there.
        """
        return connect(self._transport.way, request.connect_port(self._id, port))

    def forward(self, port: int, *, local: int = 0, host: str = "127.0.0.1") -> Forward:
        """Makes the port one of this machine, inside a `with` block.

        `local` is the local port, by default a free one; on a `host` that is no loopback address it
        lets other machines in.
        """
        call = request.connect_port(self._id, port)
        return Forward(Forwarder(self._transport.way, call), host, local)

    @contextmanager
    def http(self, port: int, **options: Any) -> Iterator[httpx.Client]:
        """A client of HTTP for what listens on the port, inside a `with` block, as in
        `web.get("/health")`. It needs no preview and opens no port of this machine. The server is
        told the host `localhost`. `options` are those of `httpx.Client`.

        Its requests raise `PortClosedError` if nothing listens there.
        """
        forwarder = Forwarder(self._transport.way, request.connect_port(self._id, port))
        with private_socket() as path, _running(forwarder, path):
            transport = _PortTransport(forwarder, path)
            url = f"http://localhost:{port}"
            with httpx.Client(base_url=url, transport=transport, **options) as client:
                yield client

    def token(self, port: int, *, ttl: int = 3600) -> models.PortToken:
        """A token for a preview of the port: its `url` opens it in a browser, for `ttl` seconds.

        Whoever has it reaches this one port. Raises `NoPreviewsError` if the daemon was started
        without previews.
        """
        return self._transport.send(request.create_port_token(self._id, port, ttl))

    def url(self, port: int) -> str:
        """The address of a preview of the port, without a token: whoever asks there sends one, or
        the port is public. Raises `NoPreviewsError` if the daemon was started without previews.
        """
        return preview_url(self._transport.send(request.sandbox(self._id)), port)

    def host(self, port: int) -> str:
        """The host in `url`, with the port of previews."""
        return (self.url(port)).partition("://")[2]

    def revoke_tokens(self, port: int) -> None:
        """Makes all tokens for the port worthless."""
        self._transport.send(request.revoke_port_tokens(self._id, port))


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="forkd-forward", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def end(self) -> None:
        """Ends what still runs in it, and its thread."""
        self.run(_end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def _running(forwarder: Forwarder, path: str) -> Iterator[None]:
    """Passes on what connects to a Unix socket."""
    loop = _Loop()
    try:
        loop.run(forwarder.start_at(path))
        yield
    finally:
        try:
            loop.run(forwarder.stop())
        finally:
            loop.end()


async def _end_all() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
