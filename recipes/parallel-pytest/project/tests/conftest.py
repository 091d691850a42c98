"""The prepared state; a child of a branch finds it ready."""

from __future__ import annotations

import sqlite3

import pytest

from project import state


@pytest.fixture
def database() -> sqlite3.Connection:
    if state.database is None:
        state.prepare()
    assert state.database is not None
    return state.database
