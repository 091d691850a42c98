"""A local port whose connections are passed on to a port of a sandbox."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from ._core.call import Call
from ._core.failure import ForkdError
from ._dial import Streams, Way, open_streams, socket_of

CHUNK_BYTES = 64 * 1024

_LOG = logging.getLogger("forkd_sdk")


class LocalPort:
    """A local port, and what passes its connections on."""

    def __init__(self, forwarder: Forwarder, host: str, port: int) -> None:
        self._forwarder = forwarder
        self.host = host
        """The local address."""
        self.port = port
        """The local port."""

    @property
    def address(self) -> str:
        """Both, as `127.0.0.1:8080`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"


class Forwarder:
    """Listens and passes on, in a running event loop of asyncio.

    Guarantees: each direction of a connection ends by itself where the transport can say so; what
    breaks off is reset, so that nobody takes what has come for the whole.
    """

    def __init__(self, way: Way, call: Call[None]) -> None:
        self._way, self._call = way, call
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusal: ForkdError | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Begins to listen. Gives the address."""
        self._server = await asyncio.start_server(self._accept, host, port)
        name = self._server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def start_at(self, path: str) -> None:
        """Begins to listen on a Unix socket."""
        self._server = await asyncio.start_unix_server(self._accept, path)

    def take_refusal(self) -> ForkdError | None:
        """Why the last connection was not served, if one was not. Tells it once."""
        refusal, self._refusal = self._refusal, None
        return refusal

    async def stop(self) -> None:
        """Ends it with all connections."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            # It was on its way when all ended.
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve((reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, near: Streams) -> None:
        writers = [near[1]]
        try:
            try:
                far = await open_streams(self._way, self._call)
                writers.append(far[1])
                await _join(near, far)
            except (ForkdError, OSError) as error:
                _LOG.warning("a connection to a port of a sandbox is reset: %s", error)
                self._refusal = error if isinstance(error, ForkdError) else None
                _reset(socket_of(near[1]))
                return
            for writer in writers:
                writer.close()
            # What is still to be sent may take its time.
            ends = (writer.wait_closed() for writer in writers)
            await asyncio.gather(*ends, return_exceptions=True)
        finally:
            for writer in writers:
                writer.transport.abort()


def _reset(sock: socket.socket) -> None:
    """Makes the close of a TCP connection a reset."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def private_socket() -> Iterator[str]:
    """A path for a Unix socket that no other user can connect to."""
    with tempfile.TemporaryDirectory(prefix="forkd-") as folder:
        yield f"{folder}/port"


async def _join(near: Streams, far: Streams) -> None:
    """Passes both directions on to their ends."""
    up = asyncio.ensure_future(_pass(near[0], far[1]))

    async def down() -> None:
        await _read_all(far[0], near[1])
        if not up.done() and _is_hung_up(socket_of(far[1])):
            raise ConnectionResetError("the sandbox has reset it")
        _end(near[1])

    ways = [up, asyncio.ensure_future(down())]
    try:
        await asyncio.gather(*ways)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _read_all(reader, writer)
    _end(writer)


async def _read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()


def _end(writer: asyncio.StreamWriter) -> None:
    """Ends one direction, if the transport can."""
    if writer.can_write_eof():
        writer.write_eof()


def _is_hung_up(sock: socket.socket) -> bool:
    """Whether a Unix socket's other end is closed in both directions, which is its way to say that
    something was reset.
    """
    poll = select.poll()
    poll.register(sock.fileno(), 0)
    return any(flags & select.POLLHUP for _, flags in poll.poll(0))
