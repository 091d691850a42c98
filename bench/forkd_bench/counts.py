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
# What is shown: the words for people, and what the tables call it.
ITEMS: Sequence[tuple[str, str, str]] = (
    ("start of a child", "start", "all"),
    ("start from a VMM that stands by", "start_standby", "all"),
    ("of it, its disk (`launch`)", "start_standby", "launch"),
    ("of it, `load`", "start_standby", "load"),
    ("of it, `resume`", "start_standby", "resume"),
    ("of it, `renew`", "start_standby", "renew"),
    ("**pause of a branch**", "branch", "window"),
    ("of it, `pause`", "branch", "pause"),
    ("of it, `save_device_state`", "branch", "save_device_state"),
    ("of it, `freeze_disk`", "branch", "freeze_disk"),
    ("of it, `protect`", "branch", "protect"),
    ("of it, `resume`", "branch", "resume"),
    ("`seal`, while the guest runs", "branch", "seal"),
)
PRIVATE = ("idle_child", "private")


def counted(cell: Cell, work: str, item: str) -> str:
    """The median of a row with the least and the most, in millions of instructions."""
    label = {"work": work, "item": item}
    [middle], [least], [most] = (cell.column(name, **label) for name in ("median", "least", "most"))
    usual, low, high = (shown(value / 1e6) for value in (middle, least, most))
    return f"{usual} ({low} to {high})"


def table(cells: Mapping[str, Cell]) -> str:
    """The counts of each host, side by side."""
    hosts = [cells[name] for name in HOSTS]
    body = [[words, *(counted(cell, work, item) for cell in hosts)] for words, work, item in ITEMS]
    work, item = PRIVATE
    private = [
        shown(kib / 1024) for cell in hosts for kib in cell.column("median", work=work, item=item)
    ]
    said = f"""An idle child has {private[0]} MiB of its own on the first, {private[1]} MiB on the
    second."""
    what = """Millions of instructions, median (least to most) of five starts, and of eleven
    branches of one source; `python` of 256 MiB with a disk, one vCPU:"""
    return f"""\
{prose(what)}

{rows(["", *HOSTS.values()], body)}

{prose(said)}"""
