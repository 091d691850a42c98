"""The figures of the measurement are what they are called."""

from __future__ import annotations

import pytest

from forkd_sdk.bench import percentile


@pytest.mark.parametrize(
    ("values", "percent", "found"),
    [
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([1.0, 2.0], 50, 1.0),
        ([float(n) for n in range(1, 101)], 99, 99.0),
        ([float(n) for n in range(1, 21)], 99, 20.0),
        ([7.0], 99, 7.0),
        ([7.0, 8.0], 0, 7.0),
    ],
)
def test_a_percentile_is_a_measured_value(
    values: list[float], percent: float, found: float
) -> None:
    assert percentile(values, percent) == found
