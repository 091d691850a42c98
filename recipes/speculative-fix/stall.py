"""The guest stall: the longest time in which a virtual CPU of the source did not run.

The meter in the guest (see `guest/meter.py`) notes gaps; here they are cut to the time around the
branch, and those until the snapshot was ready are told apart from those of the whole second, in
which the children start and want the same processors. The floor is the same measurement, equally
long, without a branch: what the host's scheduling costs on that machine at that hour.
"""

import time
from dataclasses import dataclass

from guest_programs import Guest

SPIN_MS = 1600
BEFORE_MS = 50.0
AFTER_MS = 1000.0


@dataclass(frozen=True)
class Stall:
    """The gaps of one measurement, as (milliseconds after the given instant, length)."""

    gaps_ms: list[tuple[float, float]]
    # The meter ran for as long as it was told to, by its own clock.
    complete: bool
    # It ran at the time that is looked at. On a host that is too busy for its commands it may have
    # begun late, or have been over.
    covered: bool
    real_time: bool

    def longest_ms(self, until_ms: float = AFTER_MS) -> float | None:
        """The longest gap that began before `until_ms`; 0 when none was longer than half one."""
        if not self.covered:
            return None
        return max((gap for at, gap in self.gaps_ms if at < until_ms), default=0.0)


def start(guest: Guest) -> None:
    """Starts a measurement and lets it run for as long as is looked at before the instant."""
    guest.ask("meter", "spin", str(SPIN_MS))
    time.sleep(BEFORE_MS / 1000)


def result(guest: Guest, instant_unix: float | None = None) -> Stall:
    """The gaps around `instant_unix`, or as early as possible, when the measurement is over."""
    answer = guest.ask("meter", "gaps")
    if instant_unix is None:
        instant_ms = BEFORE_MS
    else:
        instant_ms = instant_unix * 1000 - answer["begun_unix_ns"] / 1e6
    begin_ms, end_ms = instant_ms - BEFORE_MS, instant_ms + AFTER_MS
    gaps = [(at - instant_ms, gap) for at, gap in answer["gaps_ms"] if begin_ms <= at <= end_ms]
    # The start was told shortly before the meter began, so a few milliseconds may be missing there.
    covered = instant_ms > 0 and end_ms <= answer["spun_ms"]
    complete = answer["spun_ms"] >= SPIN_MS
    return Stall(gaps, complete, covered, answer["real_time"])
