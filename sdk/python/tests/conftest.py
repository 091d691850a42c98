"""Fixtures of all tests."""

from __future__ import annotations

import pytest
from fake import FakeDaemon


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def daemon() -> FakeDaemon:
    return FakeDaemon()
