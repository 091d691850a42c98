"""Measures in the guest how long a virtual CPU was held up: the stall meter.

While told to it reads the clock as fast as it can, at real-time priority on one CPU of its own, so
that nothing in the guest can take the CPU away, and notes every gap between two readings that is
longer than a limit. A gap is then time in which the CPU did not run: a page was being captured, or
the host gave the time to somebody else. Time in which the whole machine is paused is not among it:
the guest's clock stands still then. Commands over its control socket:

* `spin MS`: measures for that long, after the answer; in a child only until its clock is set;
* `gaps`: waits for the end of the measurement and gives the gaps.
"""

import os
import time
from array import array

import control

GAP_NS = 500_000
GAPS_MAX = 4096
PRIORITY = 50
# Clock readings between two looks at whether this is a child.
READINGS = 1000
CLOCK_STEP_NS = 20_000_000
# A look at both clocks that took longer was interrupted and says nothing.
LOOK_NS = 1_000_000
RT_LIMIT = "/proc/sys/kernel/sched_rt_runtime_us"


class Meter:
    """The last measurement. All memory that the loop writes is there before it starts."""

    def __init__(self, real_time: bool) -> None:
        self.real_time = real_time
        self.at = array("q", bytes(8 * GAPS_MAX))
        self.gap = array("q", bytes(8 * GAPS_MAX))
        self.count = 0
        self.begun_unix_ns = 0
        self.spun_ns = 0
        self.wanted_ns = 0

    def answer(self, words: list[str]) -> dict:
        match words:
            case ["ready"]:
                return {}
            case ["spin", milliseconds]:
                self.wanted_ns = int(milliseconds) * 1_000_000
                return {"real_time": self.real_time}
            case ["gaps"]:
                return self.result()
        raise ValueError(f"no such command: {' '.join(words)}")

    def result(self) -> dict:
        """The noted gaps, the latest if they were more than are kept, as [start, length] in ms."""
        kept = range(max(0, self.count - GAPS_MAX), self.count)
        gaps = ((self.at[i % GAPS_MAX], self.gap[i % GAPS_MAX]) for i in kept)
        return {
            "real_time": self.real_time,
            "begun_unix_ns": self.begun_unix_ns,
            "spun_ms": self.spun_ns / 1e6,
            "noted": self.count,
            "gaps_ms": [[round(at / 1e6, 3), round(gap / 1e6, 3)] for at, gap in gaps],
        }

    def spin_if_told(self) -> None:
        """Called between two commands."""
        wanted_ns, self.wanted_ns = self.wanted_ns, 0
        if wanted_ns:
            self.spin(wanted_ns)

    def spin(self, wanted_ns: int) -> None:
        now, at, gap = time.monotonic_ns, self.at, self.gap
        self.count, offset = 0, clock_offset()
        self.begun_unix_ns = time.time_ns()
        begun = last = now()
        end = begun + wanted_ns
        while last < end and not is_stepped(offset):
            for _ in range(READINGS):
                reading = now()
                if reading - last > GAP_NS:
                    at[self.count % GAPS_MAX] = last - begun
                    gap[self.count % GAPS_MAX] = reading - last
                    self.count += 1
                last = reading
        self.spun_ns = last - begun


def clock_offset() -> int | None:
    """Wall clock minus monotonic clock, or `None` if the two readings are too far apart."""
    before = time.monotonic_ns()
    offset = time.time_ns() - before
    return offset if time.monotonic_ns() - before < LOOK_NS else None


def is_stepped(offset_before: int | None) -> bool:
    """Whether the wall clock was set: the guest agent does so in a child, and only there."""
    offset = clock_offset()
    if offset is None or offset_before is None:
        return False
    return abs(offset - offset_before) > CLOCK_STEP_NS


def take_cpu() -> bool:
    """Binds us to the last CPU at real-time priority. False where that is not permitted."""
    try:
        # Otherwise the kernel takes real-time tasks away from the CPU for 50 ms every second.
        with open(RT_LIMIT, "w", encoding="ascii") as file:
            file.write("-1")
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError:
        return False
    return True


def main() -> None:
    meter = Meter(take_cpu())
    control.serve(control.listen("meter"), meter.answer, meter.spin_if_told)


if __name__ == "__main__":
    main()
