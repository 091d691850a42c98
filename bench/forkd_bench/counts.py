"""What `make count` has counted, as a table: instructions on KVM. Pure: rows in, Markdown out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .data import Cell
from .text import prose, rows, shown

# Each table, with the host that it was counted on.
HOSTS = {
    "debian12": "Debian 12: Linux 6.1, QEMU 7.2",
    "debian13": "Debian 13: Linux 6.12, QEMU 10.0",
}
# What is shown: the words for people, what the tables call it, and the guest's RAM in MiB.
ITEMS: Sequence[tuple[str, str, str, int]] = (
    ("start of a child", "start", "all", 256),
    ("start from a VMM that stands by", "start_standby", "all", 256),
    ("of it, its disk (`launch`)", "start_standby", "launch", 256),
    ("of it, `load`", "start_standby", "load", 256),
    ("of it, `resume`", "start_standby", "resume", 256),
    ("of it, `renew`", "start_standby", "renew", 256),
    ("start from one that is fitted", "start_fitted", "all", 256),
    ("the same with 1.5 GiB", "start_fitted", "all", 1536),
    ("**pause of a branch**", "branch", "window", 256),
    ("of it, `pause`", "branch", "pause", 256),
    ("of it, `save_device_state`", "branch", "save_device_state", 256),
    ("of it, `freeze_disk`", "branch", "freeze_disk", 256),
    ("of it, `protect`", "branch", "protect", 256),
    ("of it, `resume`", "branch", "resume", 256),
    ("`seal`, while the guest runs", "branch", "seal", 256),
    ("pause of the 90th to 100th branch", "branch_late", "window", 256),
    ("pause with 1.5 GiB", "branch", "window", 1536),
    ("of the 90th to 100th branch", "branch_late", "window", 1536),
)
PRIVATE: Mapping[str, float | str] = {
    "work": "idle_child",
    "item": "private",
    "memory_mib": 256,
}


def counted(cell: Cell, work: str, item: str, memory_mib: int) -> str:
    """The median of a row with the least and the most, in millions of instructions."""
    label: dict[str, float | str] = {"work": work, "item": item, "memory_mib": memory_mib}
    [middle], [least], [most] = (cell.column(name, **label) for name in ("median", "least", "most"))
    usual, low, high = (shown(value / 1e6) for value in (middle, least, most))
    return f"{usual} ({low} to {high})"


def table(cells: Mapping[str, Cell]) -> str:
    """The counts of each host, side by side."""
    hosts = [cells[name] for name in HOSTS]
    body = [
        [words, *(counted(cell, work, item, memory_mib) for cell in hosts)]
        for words, work, item, memory_mib in ITEMS
    ]
    private = [shown(kib / 1024) for cell in hosts for kib in cell.column("median", **PRIVATE)]
    said = f"""An idle child has {private[0]} MiB of its own on the first, {private[1]} MiB on the
    second."""
    what = """Millions of instructions, median (least to most) of five starts, and of eleven
    branches of one source that is branched a hundred times; `python` with a disk, of 256 MiB where
    nothing else is said, one vCPU:"""
    return f"""\
{prose(what)}

{rows(["", *HOSTS.values()], body)}

{prose(said)}"""
