"""Statistics of rows. Pure.

Percentiles are by nearest rank, as `forkd bench` has them, so each is a value that was measured.
Intervals are of 95 %, by the bootstrap (Efron, 1979) with a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
SEED = 20_261_121
# With fewer values the 99th percentile is the largest one.
P99_COUNT_MIN = 50


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed."""
    if not values:
        raise ValueError("no values")
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


def median(values: Sequence[float]) -> float:
    """The percentile of 50."""
    return percentile(values, 50)


@dataclass(frozen=True)
class Interval:
    """A figure, and where it lies with a confidence of 95 %."""

    value: float
    low: float
    high: float


def ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """The ratio of two medians."""
    random = np.random.default_rng(SEED)

    def medians(values: Sequence[float]) -> np.ndarray:
        drawn = random.choice(np.asarray(values), (RESAMPLES, len(values)))
        rank = math.ceil(len(values) / 2) - 1
        return np.sort(drawn, axis=1)[:, rank]

    found = medians(above) / medians(below)
    low, high = np.quantile(found, [0.025, 0.975])
    return Interval(median(above) / median(below), float(low), float(high))


@dataclass(frozen=True)
class Line:
    """A straight line by least squares."""

    slope: float
    intercept: float


def line(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """The line through points."""
    slope, intercept = np.polyfit(np.asarray(xs), np.asarray(ys), 1)
    return Line(float(slope), float(intercept))
