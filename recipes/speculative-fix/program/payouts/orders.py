"""Settling orders: the platform keeps its fee, the sellers share the rest."""

from collections.abc import Mapping
from dataclasses import dataclass

from payouts import money
from payouts.ledger import Ledger
from payouts.split import split

FEE_BASIS_POINTS = 250


@dataclass(frozen=True)
class Order:
    """What a buyer paid, and the sellers with their weights."""

    number: str
    total: int
    sellers: Mapping[str, int]

    def refund(self) -> "Order":
        """The order that undoes this one."""
        return Order(f"{self.number}-refund", -self.total, self.sellers)


def settle(ledger: Ledger, order: Order) -> None:
    """Book who gets what of `order`."""
    fee = money.fee(order.total, FEE_BASIS_POINTS)
    parts = split(order.total - fee, list(order.sellers.values()))
    entries = {"buyers": -order.total, "fees": fee}
    for seller, part in zip(order.sellers, parts, strict=True):
        entries[f"seller:{seller}"] = part
    ledger.post(order.number, entries)
