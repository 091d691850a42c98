"""A daemon of answers that are written down beforehand, for both shells."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import httpx

from forkd_sdk import AsyncClient, Client

Handler = Callable[[httpx.Request], httpx.Response]


def sandbox(name: str = "sb-1", **more: Any) -> dict[str, Any]:
    """A sandbox as it comes over the wire."""
    return {
        "id": name,
        "snapshot_tag": "py",
        "created_at_unix": 1,
        "state": "running",
        "branch_count": 0,
        "hostname": name,
        **more,
    }


def snapshot(tag: str = "py", **more: Any) -> dict[str, Any]:
    """A snapshot as it comes over the wire."""
    return {
        "tag": tag,
        "dir": "/d",
        "created_at_unix": 1,
        "status": "ready",
        "durable": True,
        "bootable": True,
        "chain_depth": 1,
        "ancestors": [],
        "dependents": [],
        "memory_layer_bytes": 0,
        **more,
    }


def process(**more: Any) -> dict[str, Any]:
    """A process as it comes over the wire."""
    return {
        "id": "pr-1",
        "pid": 7,
        "args": ["make"],
        "state": "running",
        "timed_out": False,
        "created_at_unix": 1,
        "output_from": 0,
        "output_to": 0,
        **more,
    }


def operation(**more: Any) -> dict[str, Any]:
    """An operation as it comes over the wire."""
    found = {"id": "op-1", "kind": "compact", "state": "succeeded", "step": "write"}
    return {**found, "created_at_unix": 1, **more}


def ok(content: Any, status: int = 200) -> httpx.Response:
    """An answer of JSON."""
    return httpx.Response(status, json=content)


def error(code: str, status: int, text: str = "no", **headers: str) -> httpx.Response:
    """An error of the daemon."""
    body = {"error": text, "code": code, "hint": "do something"}
    sent = {"x-request-id": "req-1", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return httpx.Response(status, json=body, headers=sent)


def events(*found: tuple[str, Any, str], cut: bool = False) -> httpx.Response:
    """A stream of events; `cut` ends it with a broken connection."""
    pieces = [
        f"event: {name}\ndata: {json.dumps(data)}\nid: {at}\n\n".encode()
        for name, data, at in found
    ]
    headers = {"content-type": "text/event-stream"}
    stream = Pieces([b": here\n\n", *pieces], cut=cut)
    return httpx.Response(200, headers=headers, stream=stream, extensions={"pieces": stream})


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Bytes that come piece by piece."""

    def __init__(self, pieces: list[bytes], *, cut: bool = False) -> None:
        self.pieces, self.cut, self.closed = pieces, cut, False

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces
        if self.cut:
            raise httpx.ReadError("cut")

    async def __aiter__(self) -> Any:
        for piece in self:
            yield piece

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class FakeDaemon:
    """Answers by method and path; a list of answers is used up one by one."""

    routes: dict[str, Any] = field(default_factory=dict)
    requests: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self._answer(request)

    async def answer_async(self, request: httpx.Request) -> httpx.Response:
        """The same for the asynchronous shell."""
        await request.aread()
        # As the network would: what was cancelled ends here.
        await anyio.lowlevel.checkpoint()
        return self._answer(request)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        found = self.routes.get(f"{request.method} {request.url.path}")
        if isinstance(found, list):
            found = found.pop(0)
        if isinstance(found, Exception):
            raise found
        if callable(found):
            found = found(request)
        return found or error("route_not_found", 404, f"{request.method} {request.url.path}")

    def client(self, **options: Any) -> Client:
        """A synchronous client of it."""
        return Client("http://fake", transport=httpx.MockTransport(self), **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """An asynchronous client of it."""
        transport = httpx.MockTransport(self.answer_async)
        return AsyncClient("http://fake", transport=transport, **options)

    @property
    def asked(self) -> list[str]:
        """What was asked for, in order."""
        return [f"{request.method} {request.url.path}" for request in self.requests]

    def body(self, index: int = -1) -> Any:
        """The JSON of a request."""
        return json.loads(self.requests[index].content)
