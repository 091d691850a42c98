"""These tests change what all share; in another child nobody sees it."""

import sqlite3

from project import state


def test_everything_can_be_deleted(database: sqlite3.Connection) -> None:
    database.execute("delete from orders")
    assert database.execute("select count(*) from orders").fetchone() == (0,)


def test_and_stays_deleted_here(database: sqlite3.Connection) -> None:
    assert database.execute("select count(*) from orders").fetchone() == (0,)
    assert state.preparations == 1
