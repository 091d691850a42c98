"""A request that turns its connection into a byte stream. No I/O."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from .call import Answer, Call
from .failure import NotUnderstoodError
from .target import Target

PROTOCOL = "tcp"

# Of an answer's head.
HEAD_BYTES_MAX = 64 * 1024
HEAD_END = b"\r\n\r\n"

SWITCHING_PROTOCOLS = 101


def request_head(target: Target, token: str | None, call: Call[Any]) -> bytes:
    """The request as it goes over the wire."""
    base = urlsplit(target.base_url)
    lines = [
        f"{call.method} {base.path.rstrip('/')}{call.path} HTTP/1.1",
        f"Host: {base.netloc.rpartition('@')[2]}",
        "User-Agent: forkd-sdk-python",
        "Connection: Upgrade",
        f"Upgrade: {PROTOCOL}",
    ]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode()


def read_head(head: bytes) -> Answer:
    """The answer up to its body."""
    first, *lines = head.removesuffix(HEAD_END).decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not status.isdigit():
        raise NotUnderstoodError(f"the answer is no HTTP: {first[:80]!r}")
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    return Answer(int(status), headers, b"")


def body_bytes(answer: Answer) -> int:
    """How long the body of a refusal is."""
    length = answer.headers.get("content-length", "")
    return min(int(length), HEAD_BYTES_MAX) if length.isdigit() else 0
