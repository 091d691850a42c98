"""One daemon of our own for all tests here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forkd_sdk import Client
from forkd_sdk._core.target import parse

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "conformance"))


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """Where the daemon is; also in the environment, for E2B's packages too."""
    from with_daemon import own_daemon, variables

    with own_daemon() as address:
        told = variables(address)
        os.environ.update(told)
        yield address
        for name in told:
            del os.environ[name]


@pytest.fixture(scope="session")
def interface(url: str) -> dict[str, Any]:
    """The daemon's OpenAPI document."""
    transport = httpx.HTTPTransport(uds=parse(url).socket)
    with httpx.Client(transport=transport, base_url="http://localhost") as client:
        document: dict[str, Any] = client.get("/openapi.json").json()
        return document


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A client; whatever the test has left is an error."""
    with Client(url) as client:
        before = {sandbox.id for sandbox in client.sandboxes.list()}
        yield client
        left = {sandbox.id for sandbox in client.sandboxes.list()} - before
        for sandbox_id in left:
            client.sandboxes.remove(sandbox_id)
        assert not left, "the test left sandboxes behind"
