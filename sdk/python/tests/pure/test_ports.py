"""Byte streams to ports, in both shells, from a server that stands for a daemon: over a Unix
socket, TCP and TLS.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import fake
import pytest

from forkd_sdk import AsyncClient, AsyncForward, AsyncPorts, Client, Forward, Ports, models
from forkd_sdk._core.decode import decode
from forkd_sdk._core.preview import preview_url
from forkd_sdk.errors import (
    ConnectionBrokenError,
    NoPreviewsError,
    NotUnderstoodError,
    PortClosedError,
    UnreachableError,
)

UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: tcp\r\n\r\n"
REFUSAL = json.dumps({"error": "nothing listens", "code": "port_closed", "hint": "wait"}).encode()
CLOSED = b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%s" % (len(REFUSAL), REFUSAL)


def greet_and_echo(sock: socket.socket) -> None:
    """Speaks first, and ends when it has heard the end."""
    sock.sendall(b"hello")
    while data := sock.recv(65536):
        sock.sendall(data)
    if not isinstance(sock, ssl.SSLSocket):
        sock.shutdown(socket.SHUT_WR)


def break_off(sock: socket.socket) -> None:
    """Says a part, and closes both directions."""
    sock.sendall(b"part")
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@dataclass
class Daemon:
    """Answers each request with a head and then behaves."""

    url: str
    listener: socket.socket
    tls: ssl.SSLContext | None = None
    answer: bytes = UPGRADE
    behave: Callable[[socket.socket], None] = greet_and_echo
    heads: list[str] = field(default_factory=list)

    def serve(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.converse, args=(sock,), daemon=True).start()

    def converse(self, sock: socket.socket) -> None:
        try:
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                piece = sock.recv(1)
                if not piece:
                    return
                head += piece
            self.heads.append(head.decode())
            sock.sendall(self.answer)
            if self.answer == UPGRADE:
                self.behave(sock)
        except OSError:
            pass
        finally:
            sock.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(made, check=True, capture_output=True)
    return folder


@pytest.fixture(params=["unix", "tcp", "tls"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Daemon]:
    tls = None
    if request.param == "unix":
        path = str(tmp_path / "s")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        url = f"unix:{path}"
    else:
        listener = socket.create_server(("localhost", 0))
        scheme = "https" if request.param == "tls" else "http"
        url = f"{scheme}://localhost:{listener.getsockname()[1]}"
        if request.param == "tls":
            folder: Path = request.getfixturevalue("certificate")
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    listener.listen()
    daemon = Daemon(url, listener, tls)
    threading.Thread(target=daemon.serve, daemon=True).start()
    yield daemon
    listener.close()


@pytest.fixture
def ports(server: Daemon, request: pytest.FixtureRequest) -> Iterator[Ports]:
    ca_cert = None
    if server.tls is not None:
        ca_cert = str(request.getfixturevalue("certificate") / "cert.pem")
    with Client(server.url, token="secret", ca_cert=ca_cert) as client:
        yield Ports(client._transport, "sb-1")


@pytest.fixture
def async_ports(server: Daemon, request: pytest.FixtureRequest) -> AsyncPorts:
    ca_cert = None
    if server.tls is not None:
        ca_cert = str(request.getfixturevalue("certificate") / "cert.pem")
    client = AsyncClient(server.url, token="secret", ca_cert=ca_cert)
    return AsyncPorts(client._transport, "sb-1")


def asked(server: Daemon) -> None:
    (head,) = server.heads
    first, *lines = head.split("\r\n")
    assert first == "GET /v1/sandboxes/sb-1/ports/80 HTTP/1.1"
    assert {"Connection: Upgrade", "Upgrade: tcp", "Authorization: Bearer secret"} <= set(lines)


def receive(sock: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (piece := sock.recv(count - len(found))):
        found += piece
    return found


def test_a_socket_carries_all_from_the_first_byte(server: Daemon, ports: Ports) -> None:
    with ports.connect(80) as sock:
        assert receive(sock, 5) == b"hello"
        data = bytes(range(256)) * 100
        sock.sendall(data)
        assert receive(sock, len(data)) == data
        if server.tls is None:
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
    asked(server)


@pytest.mark.anyio
async def test_streams_carry_all_from_the_first_byte(
    server: Daemon, async_ports: AsyncPorts
) -> None:
    reader, writer = await async_ports.connect(80)
    assert await reader.readexactly(5) == b"hello"
    data = bytes(range(256)) * 100
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    if writer.can_write_eof():
        writer.write_eof()
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    asked(server)


# An answer, and what it means.
REFUSALS = [
    (CLOSED, PortClosedError, "nothing listens"),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", NotUnderstoodError, "not 101"),
    (b"SSH-2.0-OpenSSH\r\n\r\n", NotUnderstoodError, "no HTTP"),
    (b"HTTP/1.1 409 Conflict\r\ncontent-le", ConnectionBrokenError, "broke off"),
    (b"HTTP/1.1 409 Conflict\r\nx: " + b"x" * 70_000, NotUnderstoodError, "does not end"),
]


@pytest.mark.parametrize(("answer", "kind", "word"), REFUSALS)
def test_a_refusal_is_an_exception(
    server: Daemon, ports: Ports, answer: bytes, kind: type[Exception], word: str
) -> None:
    server.answer = answer
    with pytest.raises(kind, match=word):
        ports.connect(80)


@pytest.mark.anyio
@pytest.mark.parametrize(("answer", "kind", "word"), REFUSALS)
async def test_a_refusal_is_an_exception_in_both_shells(
    server: Daemon, async_ports: AsyncPorts, answer: bytes, kind: type[Exception], word: str
) -> None:
    server.answer = answer
    with pytest.raises(kind, match=word):
        await async_ports.connect(80)


@pytest.mark.anyio
async def test_nobody_there_is_told(tmp_path: Path) -> None:
    url = f"unix:{tmp_path}/none"
    with Client(url) as client, pytest.raises(UnreachableError):
        Ports(client._transport, "sb-1").connect(80)
    async with AsyncClient(url) as client:
        with pytest.raises(UnreachableError):
            await AsyncPorts(client._transport, "sb-1").connect(80)


def use(host: str, port: int, *, half_close: bool) -> None:
    """A client of a forwarded port. More at once than a buffer holds."""
    with socket.create_connection((host, port), timeout=60) as sock:
        assert receive(sock, 5) == b"hello"
        data = bytes(range(256)) * 4096
        sender = threading.Thread(target=sock.sendall, args=(data,))
        sender.start()
        assert receive(sock, len(data)) == data
        sender.join()
        if half_close:
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""


def is_reset(host: str, port: int) -> bytes:
    """What came before the reset."""
    found = b""
    with socket.create_connection((host, port), timeout=60) as sock:
        while True:
            try:
                piece = sock.recv(100)
            except ConnectionResetError:
                return found
            assert piece, "it looks complete"
            found += piece


def test_many_connections_pass_a_forwarded_port_at_once(server: Daemon, ports: Ports) -> None:
    with ports.forward(80) as forward:
        assert isinstance(forward, Forward)
        assert forward.address == f"127.0.0.1:{forward.port}"
        half_close = server.tls is None
        clients = [
            threading.Thread(
                target=use, args=(forward.host, forward.port), kwargs={"half_close": half_close}
            )
            for _ in range(4)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join(60)
        held = socket.create_connection((forward.host, forward.port), timeout=60)
        assert receive(held, 5) == b"hello"
    with held:
        # The end of the block ends it.
        assert select.select([held], [], [], 60)[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((forward.host, forward.port))
    assert len(server.heads) == 5


def test_what_cannot_be_served_is_reset(
    server: Daemon, ports: Ports, caplog: pytest.LogCaptureFixture
) -> None:
    with ports.forward(80) as forward:
        server.answer = CLOSED
        assert is_reset(forward.host, forward.port) == b""
        assert "nothing listens" in caplog.text
        server.answer, server.behave = UPGRADE, break_off
        # A reset may overtake what was said before; on a Unix socket it cannot.
        found = is_reset(forward.host, forward.port)
        assert found == b"part" or (server.tls is not None or "unix" not in server.url)


@pytest.mark.anyio
async def test_a_port_is_forwarded_asynchronously(server: Daemon, async_ports: AsyncPorts) -> None:
    async with async_ports.forward(80) as forward:
        assert isinstance(forward, AsyncForward)
        arguments = (forward.host, forward.port)
        uses = [asyncio.to_thread(use, *arguments, half_close=server.tls is None) for _ in range(4)]
        await asyncio.gather(*uses)
        server.behave = break_off
        await asyncio.to_thread(is_reset, *arguments)


def serve_http(sock: socket.socket) -> None:
    """Says what it was asked, on a connection that can be used again."""
    while head := read_head(sock):
        first, *lines = head.split("\r\n")
        host = next(line for line in lines if line.lower().startswith("host:"))
        text = f"{first} {host}".encode()
        sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))


def read_head(sock: socket.socket) -> str:
    head = b""
    while not head.endswith(b"\r\n\r\n") and (piece := sock.recv(1)):
        head += piece
    return head.decode()


def test_a_client_of_http_reaches_a_server_and_is_told_why_not(
    server: Daemon, ports: Ports
) -> None:
    server.behave = serve_http
    with ports.http(80, headers={"x-own": "1"}) as web:
        for path in ["/a?b=c", "/again"]:
            text = web.get(path).text
            assert text.lower() == f"get {path} http/1.1 host: localhost"
    assert len(server.heads) == 1, "one connection for both"
    server.answer = CLOSED
    with ports.http(80) as web, pytest.raises(PortClosedError, match="nothing listens"):
        web.get("/")


@pytest.mark.anyio
async def test_a_client_of_http_works_asynchronously(
    server: Daemon, async_ports: AsyncPorts
) -> None:
    server.behave = serve_http
    async with async_ports.http(80) as web:
        found = await asyncio.gather(web.get("/a"), web.get("/b"))
        assert [answer.text.split()[1] for answer in found] == ["/a", "/b"]
    server.answer = CLOSED
    async with async_ports.http(80) as web:
        with pytest.raises(PortClosedError, match="nothing listens"):
            await web.get("/")


def test_a_preview_has_an_address_where_there_are_previews() -> None:
    found = fake.sandbox()
    with pytest.raises(NoPreviewsError, match="--preview-listen"):
        preview_url(decode(models.Sandbox, found), 80)
    found["preview_url"] = "http://{port}-sb-1.localhost:8890"
    assert preview_url(decode(models.Sandbox, found), 80) == "http://80-sb-1.localhost:8890"
