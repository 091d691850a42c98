"""Byte streams to ports of a sandbox: the connections that are not HTTP for long."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import urlsplit

from ._core.call import Answer, Call, error_of
from ._core.failure import ForkdError, NotUnderstoodError
from ._core.target import Target, broken, silent, unreachable
from ._core.upgrade import (
    HEAD_BYTES_MAX,
    HEAD_END,
    SWITCHING_PROTOCOLS,
    body_bytes,
    read_head,
    request_head,
)
from ._tls import trust

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CONNECT_SECS = 10.0


@dataclass(frozen=True)
class Way:
    """How a daemon is reached."""

    target: Target
    token: str | None
    ca_cert: str | None

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For `https`."""
        found = trust(self.target, self.ca_cert)
        return found if isinstance(found, ssl.SSLContext) else None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of a URL."""
        base = urlsplit(self.target.base_url)
        return base.hostname or "", base.port or (443 if base.scheme == "https" else 80)


def connect(way: Way, call: Call[None]) -> socket.socket:
    """A connected socket. Blocks until the port has answered."""
    with _told(way.target):
        try:
            sock = _socket(way)
        except OSError as error:
            raise unreachable(way.target, error) from error
        try:
            _upgrade(sock, way, call)
        except BaseException:
            sock.close()
            raise
        return sock


def _upgrade(sock: socket.socket, way: Way, call: Call[None]) -> None:
    sock.settimeout(call.timeout_secs)
    sock.sendall(request_head(way.target, way.token, call))
    answer = read_head(_receive_head(sock))
    if answer.status != SWITCHING_PROTOCOLS:
        raise _refusal(answer, _receive(sock, body_bytes(answer)))
    sock.settimeout(None)


async def open_streams(way: Way, call: Call[None]) -> Streams:
    """The same for an event loop of asyncio."""
    with _told(way.target):
        try:
            reader, writer = await asyncio.wait_for(_streams(way), CONNECT_SECS)
        except (OSError, asyncio.TimeoutError) as error:
            raise unreachable(way.target, error) from error
        try:
            await _upgrade_streams(reader, writer, way, call)
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer


async def _upgrade_streams(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way, call: Call[None]
) -> None:
    writer.write(request_head(way.target, way.token, call))
    head = await asyncio.wait_for(reader.readuntil(HEAD_END), call.timeout_secs)
    answer = read_head(head)
    if answer.status != SWITCHING_PROTOCOLS:
        raise _refusal(answer, await reader.readexactly(body_bytes(answer)))


@contextmanager
def _told(target: Target) -> Iterator[None]:
    """Errors of the connection as our own."""
    try:
        yield
    except ForkdError:
        raise
    except (TimeoutError, asyncio.TimeoutError, socket.timeout) as error:  # noqa: UP041
        raise silent(target) from error
    except (OSError, asyncio.IncompleteReadError) as error:
        raise broken(target, error) from error
    except asyncio.LimitOverrunError as error:
        raise NotUnderstoodError("the answer's head does not end") from error


def _refusal(answer: Answer, content: bytes) -> Exception:
    if answer.status < 300:
        return NotUnderstoodError(f"the answer has the status {answer.status}, not 101")
    return error_of(replace(answer, content=content))


def _socket(way: Way) -> socket.socket:
    if way.target.socket is not None:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(CONNECT_SECS)
        try:
            sock.connect(way.target.socket)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection(way.address, timeout=CONNECT_SECS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tls = way.tls
    return tls.wrap_socket(sock, server_hostname=way.address[0]) if tls else sock


async def _streams(way: Way) -> Streams:
    limit = HEAD_BYTES_MAX
    if way.target.socket is not None:
        return await asyncio.open_unix_connection(way.target.socket, limit=limit)
    host, port = way.address
    more: dict[str, Any] = {"server_hostname": host} if way.tls else {}
    return await asyncio.open_connection(host, port, ssl=way.tls, limit=limit, **more)


def _receive_head(sock: socket.socket) -> bytes:
    """Byte by byte: what follows belongs to the stream."""
    head = bytearray()
    while not head.endswith(HEAD_END):
        if len(head) > HEAD_BYTES_MAX:
            raise NotUnderstoodError("the answer's head does not end")
        head += _receive(sock, 1)
    return bytes(head)


def _receive(sock: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = sock.recv(count - len(found))
        if not piece:
            raise ConnectionError("it was closed before the answer had ended")
        found += piece
    return bytes(found)


def socket_of(writer: asyncio.StreamWriter) -> socket.socket:
    """The socket below a stream."""
    return cast("socket.socket", writer.get_extra_info("socket"))
