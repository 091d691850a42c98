"""Amounts of money. Inside the program an amount is an `int` of cents, never a float."""

import re

_AMOUNT = re.compile(r"(-?)(\d+)\.(\d{2})")


def parse(text: str) -> int:
    """Cents of an amount such as `12.34` or `-0.05`."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not an amount with two decimals: {text!r}")
    sign, whole, cents = match.groups()
    value = int(whole) * 100 + int(cents)
    return -value if sign else value


def show(cents: int) -> str:
    """The amount as people write it."""
    sign = "-" if cents < 0 else ""
    whole, rest = divmod(abs(cents), 100)
    return f"{sign}{whole}.{rest:02d}"


def fee(total: int, basis_points: int) -> int:
    """`basis_points` of `total` to the nearest cent; a refund returns exactly the fee paid."""
    cents = (abs(total) * basis_points + 5_000) // 10_000
    return -cents if total < 0 else cents
