import sqlite3

import pytest

from project import state


def test_all_orders_are_there(database: sqlite3.Connection) -> None:
    assert database.execute("select count(*) from orders").fetchone() == (state.ROWS,)


@pytest.mark.parametrize("buyer", range(0, 997, 100))
def test_every_buyer_has_orders(database: sqlite3.Connection, buyer: int) -> None:
    query = "select count(*) from orders where buyer = ?"
    (count,) = database.execute(query, (f"buyer-{buyer}",)).fetchone()
    assert count in (60, 61)


def test_the_state_was_prepared_once(database: sqlite3.Connection) -> None:
    assert state.preparations == 1
