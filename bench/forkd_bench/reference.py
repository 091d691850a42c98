"""The known system's published figures, to lay beside ours.

Of forkd 0.5.3 on Firecracker, as its authors published them: i7-12700, spinning disk, KVM. Ours
come from another machine and from emulated guests, so only the shape of the two can be compared.
All in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

NAME = "the reference"


@dataclass(frozen=True)
class Mode:
    """A row of its table of modes; medians of 10 in a guest of 1,536 MiB."""

    pause_ms: float
    pause_p90_ms: float
    round_trip_ms: float


# Its `live` comes in two kinds. Ours are one mode with two waits.
MODES = {
    ("live", "ready"): Mode(56, 64, 13_730),
    ("live", "resumed"): Mode(54, 241, 69),
    ("diff", "ready"): Mode(202, 418, 13_461),
    ("full", "ready"): Mode(13_550, 14_268, 13_559),
}

# Its sweep of RAM, idle, on tmpfs and on disk: the least and the most, at 256 and 4,096 MiB.
RAM_MIB = (256, 4096)
RAM_PAUSE_MS = {
    ("full", "disk"): (1_807, 29_322),
    ("full", "tmpfs"): (172, 1_190),
    ("diff", "disk"): (241, 205),
    ("diff", "tmpfs"): (200, 190),
}

# Its sweep of dirty memory in 2,048 MiB: the pause of a diff is 500 + 10.2 ms per MiB.
DIRTY_INTERCEPT_MS = 500.0
DIRTY_SLOPE_MS = 10.2
