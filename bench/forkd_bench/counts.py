"""What `make count` has counted, as a table: instructions on KVM. Pure: rows in, Markdown out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .data import Cell, DataError
from .text import prose, rows, shown

# Each table, with the host that it was counted on.
HOSTS = {
    "debian12": "Debian 12: Linux 6.1, QEMU 7.2",
    "debian13": "Debian 13: Linux 6.12, QEMU 10.0",
}
# What is shown: the words for people, what the tables call it, and the guest's RAM in MiB.
ITEMS: Sequence[tuple[str, str, str, int]] = (
    ("start of a child", "start", "all", 256),
    ("child of a branch, from a VMM that stands by", "start_standby", "all", 256),
    ("of it, its disk (`launch`)", "start_standby", "launch", 256),
    ("of it, `load`", "start_standby", "load", 256),
    ("of it, `resume`", "start_standby", "resume", 256),
    ("of it, `renew`", "start_standby", "renew", 256),
    ("child of a template, from one that is fitted", "start_fitted", "all", 256),
    ("**pause of a branch**", "branch", "window", 256),
    ("of it, `pause`", "branch", "pause", 256),
    ("of it, `save_device_state`", "branch", "save_device_state", 256),
    ("of it, `freeze_disk`", "branch", "freeze_disk", 256),
    ("of it, `protect`", "branch", "protect", 256),
    ("of it, `resume`", "branch", "resume", 256),
    ("`seal`, while the guest runs", "branch", "seal", 256),
    ("pause of the 90th to 100th branch", "branch_late", "window", 256),
    ("child of a template of 1.5 GiB, from one that is fitted", "start_fitted", "all", 1536),
    ("**pause of a branch of 1.5 GiB**", "branch", "window", 1536),
    ("of it, `protect`", "branch", "protect", 1536),
    ("pause of the 90th to 100th branch of 1.5 GiB", "branch_late", "window", 1536),
)
# Of a row that a later version counts, in a table of an earlier one.
NOT_COUNTED = "not counted"
PRIVATE: Mapping[str, float | str] = {
    "work": "idle_child",
    "item": "private",
    "memory_mib": 256,
}


def counted(cell: Cell, work: str, item: str, memory_mib: int) -> str | None:
    """The median of a row with the least and the most, in millions of instructions.

    None if the host's table has no such row.
    """
    label: dict[str, float | str] = {"work": work, "item": item, "memory_mib": memory_mib}
    figures = [cell.column(name, **label) for name in ("median", "least", "most")]
    if not any(figures):
        return None
    usual, low, high = (shown(value / 1e6) for [value] in figures)
    return f"{usual} ({low} to {high})"


def line(cells: Sequence[Cell], words: str, work: str, item: str, memory_mib: int) -> list[str]:
    """A row of the table: what was counted on each host."""
    found = [counted(cell, work, item, memory_mib) for cell in cells]
    if not any(found):
        raise DataError(f"nobody counted {item} of {work}: run `make count WRITE=1`")
    return [words, *(figure or NOT_COUNTED for figure in found)]


def table(cells: Mapping[str, Cell]) -> str:
    """The counts of each host, side by side."""
    hosts = [cells[name] for name in HOSTS]
    body = [line(hosts, *item) for item in ITEMS]
    private = [shown(kib / 1024) for cell in hosts for kib in cell.column("median", **PRIVATE)]
    said = f"""An idle child has {private[0]} MiB of its own on the first, {private[1]} MiB on the
    second."""
    what = """Millions of instructions, median (least to most) of five starts, and of eleven
    branches of one source; `python` with a disk, one vCPU, and 256 MiB where nothing else is
    said:"""
    return f"""\
{prose(what)}

{rows(["", *HOSTS.values()], body)}

{prose(said)}"""
