"""What the tests need and takes long to prepare: a database in memory, and a list of primes."""

from __future__ import annotations

import sqlite3

ROWS = 60_000

database: sqlite3.Connection | None = None
primes: list[int] = []
preparations = 0


def prepare() -> None:
    """Builds everything."""
    global database, preparations
    preparations += 1
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute("create table orders (id integer primary key, buyer text, cents integer)")
    rows = ((number, f"buyer-{number % 997}", number * 37 % 10_000) for number in range(ROWS))
    database.executemany("insert into orders values (?, ?, ?)", rows)
    database.execute("create index by_buyer on orders (buyer)")
    database.commit()
    sieve = bytearray([1]) * 200_000
    for number in range(2, len(sieve)):
        if sieve[number]:
            primes.append(number)
            sieve[number * number :: number] = bytes(len(sieve[number * number :: number]))
