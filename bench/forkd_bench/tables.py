"""What is measured: tables, each of cells, each one run of `forkd bench` or of its peers.

A run takes its modes in turn. The cells of a table follow one another, so compare figures of
different cells only as far as the machine stayed the same; every file says how busy it was.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One run, and the file of its rows. The command is one of `forkd bench`, or `peers`."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Cells that are compared."""

    name: str
    question: str
    cells: tuple[Cell, ...]


MODES = "full,diff,live"
RAM_MIB = (256, 512, 1024, 2048, 4096)
DIRTY_MIB = (0, 10, 50, 100, 250, 500, 1000)
# The guest of the reference's tables.
GUEST_MIB = 1536
DIRTY_GUEST_MIB = 2048


def branch(name: str, iterations: int, *options: str) -> Cell:
    """A cell of `forkd bench branch`. The stall meter would keep a CPU from the daemon."""
    return Cell(name, ("branch", "--iterations", str(iterations), "--no-gap", *options))


def tables(quick: bool) -> tuple[Table, ...]:
    """All tables. Quick ones have as few rows as may be compared."""
    few, many, chain = (3, 10, 30) if quick else (10, 50, 100)
    ram = tuple(
        branch(f"{mib}", few, "--mem-size-mib", str(mib), "--mode", MODES, "--wait", "ready")
        for mib in RAM_MIB
    )
    dirty = tuple(
        branch(
            f"{mib}",
            few,
            *("--mem-size-mib", str(DIRTY_GUEST_MIB), "--mode", MODES, "--wait", "ready"),
            *("--dirty-mib", str(mib)),
        )
        for mib in DIRTY_MIB
    )
    return (
        Table(
            "modes",
            "What does each mode cost the source and the caller?",
            (branch("1536", 10, "--mem-size-mib", str(GUEST_MIB), "--mode", MODES),),
        ),
        Table("ram", "Does the pause grow with RAM?", ram),
        Table("dirty", "Does it grow with what the guest has written?", dirty),
        Table(
            "chain",
            "Does it grow from branch to branch?",
            (branch("live", chain, "--chain", "--wait", "ready"),),
        ),
        Table(
            "peers",
            "What does QEMU itself offer?",
            (Cell("1536", ("peers", str(GUEST_MIB), str(few))),),
        ),
        Table(
            "children",
            "What does a child cost?",
            (
                Cell("1", ("fork", "-n", "1", "--idle-secs", "0", "--iterations", str(many))),
                Cell("10", ("fork", "-n", "10", "--idle-secs", "0", "--iterations", str(few))),
            ),
        ),
    )
