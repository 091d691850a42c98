"""The TCP ports of a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import httpx

from .. import models
from .._core import request
from .._core.preview import preview_url
from .._dial import open_streams
from .._forward import Forwarder, LocalPort, private_socket
from .transport import AsyncTransport


class AsyncForward(LocalPort):
    """A local port whose connections are passed on to a port of a sandbox, inside a `with` block.

    A connection that the sandbox does not take is reset, and the logger `forkd_sdk` says why.
    """

    async def close(self) -> None:
        """Ends it with all its connections."""
        await self._forwarder.stop()

    async def __aenter__(self) -> AsyncForward:
        self.host, self.port = await self._forwarder.start(self.host, self.port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class _PortTransport(httpx.AsyncHTTPTransport):
    """Raises what the daemon has said instead of that the connection broke off."""

    def __init__(self, forwarder: Forwarder, path: str) -> None:
        super().__init__(uds=path)
        self._forwarder = forwarder

    async def handle_async_request(self, asked: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(asked)
        except httpx.TransportError as error:
            if (refusal := self._forwarder.take_refusal()) is not None:
                raise refusal from error
            raise


class AsyncPorts:
    """Reaches what listens in a sandbox, on whatever address, loopback too. It does not matter what
    the sandbox itself may reach.
    """

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport, self._id = transport, sandbox_id

    async def list(self) -> list[models.Port]:
        """What is listened on, by number and address."""
        return await self._transport.send(request.ports(self._id))

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A byte stream to a port. For asyncio: it is what `asyncio.open_connection` gives.

        Raises `PortClosedError` if nothing listens there.
        """
        return await open_streams(self._transport.way, request.connect_port(self._id, port))

    @asynccontextmanager
    async def http(self, port: int, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        """A client of HTTP for what listens on the port, inside a `with` block, as in
        `web.get("/health")`. It needs no preview and opens no port of this machine. The server is
        told the host `localhost`. `options` are those of `httpx.AsyncClient`.

        Its requests raise `PortClosedError` if nothing listens there.
        """
        forwarder = Forwarder(self._transport.way, request.connect_port(self._id, port))
        with private_socket() as path:
            await forwarder.start_at(path)
            try:
                transport = _PortTransport(forwarder, path)
                url = f"http://localhost:{port}"
                async with httpx.AsyncClient(
                    base_url=url, transport=transport, **options
                ) as client:
                    yield client
            finally:
                await forwarder.stop()

    async def token(self, port: int, *, ttl: int = 3600) -> models.PortToken:
        """A token for a preview of the port: its `url` opens it in a browser, for `ttl` seconds.

        Whoever has it reaches this one port. Raises `NoPreviewsError` if the daemon was started
        without previews.
        """
        return await self._transport.send(request.create_port_token(self._id, port, ttl))

    async def url(self, port: int) -> str:
        """The address of a preview of the port, without a token: whoever asks there sends one, or
        the port is public. Raises `NoPreviewsError` if the daemon was started without previews.
        """
        return preview_url(await self._transport.send(request.sandbox(self._id)), port)

    async def host(self, port: int) -> str:
        """The host in `url`, with the port of previews."""
        return (await self.url(port)).partition("://")[2]

    async def revoke_tokens(self, port: int) -> None:
        """Makes all tokens for the port worthless."""
        await self._transport.send(request.revoke_port_tokens(self._id, port))

    def forward(self, port: int, *, local: int = 0, host: str = "127.0.0.1") -> AsyncForward:
        """Makes the port one of this machine, inside a `with` block.

        `local` is the local port, by default a free one; on a `host` that is no loopback address it
        lets other machines in.
        """
        call = request.connect_port(self._id, port)
        return AsyncForward(Forwarder(self._transport.way, call), host, local)
