"""Writes each table of the results from its rows. Pure: rows in, Markdown out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from . import counts, figures, reference
from .data import Cell
from .figures import P99_COUNT_MIN, Interval, median, percentile
from .tables import DIRTY_MIB, RAM_MIB
from .text import prose, rows, shown

MIB = 1 << 20
MODES = ("live", "diff", "full")
WINDOW = ("pause", "save_device_state", "freeze_disk", "protect", "resume")
# Of a chain, compared with each other.
ENDS = 10

Cells = Mapping[str, Cell]
Tables = Mapping[str, Cells]


def spread(values: Sequence[float]) -> str:
    """Median, 90th percentile, and the 99th where there are enough; the most."""
    if not values:
        return "not measured"
    percents = [50, 90] + ([99] if len(values) >= P99_COUNT_MIN else [])
    found = [shown(percentile(values, percent)) for percent in percents]
    return " / ".join([*found, shown(max(values))])


def spread_head(count: int) -> str:
    """What `spread` gives of so many values."""
    return "p50 / p90 / p99 / max" if count >= P99_COUNT_MIN else "p50 / p90 / max"


def between(interval: Interval) -> str:
    """A ratio and its interval."""
    low, high = shown(interval.low), shown(interval.high)
    return f"{shown(interval.value)} times ({low} to {high})"


def modes(tables: Tables) -> str:
    """What each mode costs, beside the reference."""
    cell = tables["modes"]["1536"]
    body, count = [], 0
    for mode in MODES:
        for wait in ("ready", "resumed"):
            labels = {"mode": mode, "wait": wait}
            pauses = cell.column("pause_ms", **labels)
            count = len(pauses)
            known = reference.MODES.get((mode, wait))
            theirs = f"{shown(known.pause_ms)}; {shown(known.round_trip_ms)}" if known else ""
            body.append(
                [
                    f"`{mode}`",
                    wait,
                    spread(pauses),
                    spread(cell.column("http_round_trip_ms", **labels)),
                    spread(cell.column("poll_until_ready_ms", **labels)),
                    theirs,
                ]
            )
    theirs = "the reference: pause; round trip"
    head = ["mode", "waits until", "pause", "round trip", "ready", theirs]
    live = cell.column("pause_ms", mode="live")
    diff, full = (
        figures.ratio(cell.column("pause_ms", mode=mode), live) for mode in ("diff", "full")
    )
    said = f"""`diff` pauses {between(diff)} as long as `live`, and `full` {between(full)}. In
    brackets: intervals of 95 %."""
    return f"""\
{count} of each, in turns, in ms, {spread_head(count)}; the reference's are medians:

{rows(head, body)}

{prose(said)}"""


def ram(tables: Tables) -> str:
    """The pause against RAM."""
    cells = tables["ram"]
    body = []
    for mib in RAM_MIB:
        cell = cells[str(mib)]
        pauses = [spread(cell.column("pause_ms", mode=mode)) for mode in MODES]
        ready = spread(cell.column("poll_until_ready_ms", mode="live"))
        body.append([f"{mib:,} MiB", *pauses, ready])
    ends = (cells[str(mib)].column("pause_ms", mode="live") for mib in (RAM_MIB[0], RAM_MIB[-1]))
    least, most = ends
    head = ["guest, idle", *(f"`{mode}`" for mode in MODES), "`live`, ready"]
    grown = f"""With {RAM_MIB[-1] // RAM_MIB[0]} times the RAM the `live` pause is
    {between(figures.ratio(most, least))} as long."""
    theirs = {
        key: f"{shown(low)} to {shown(high)} ms"
        for key, (low, high) in reference.RAM_PAUSE_MS.items()
    }
    known = f"""The reference, from {reference.RAM_MIB[0]:,} to {reference.RAM_MIB[1]:,} MiB:
    `full` {theirs["full", "disk"]} on disk and {theirs["full", "tmpfs"]} on tmpfs, `diff`
    {theirs["diff", "disk"]} and {theirs["diff", "tmpfs"]}."""
    return f"""\
{len(least)} of each, in ms, {spread_head(len(least))}:

{rows(head, body)}

{prose(grown, "* ")}
{prose(known, "* ")}"""


def dirty_points(cells: Cells, mode: str, column: str) -> tuple[list[float], list[float]]:
    """All rows of a mode: MiB that were dirty, and a figure."""
    points = [
        (row["dirty_bytes"], row[column])
        for mib in DIRTY_MIB
        for row in cells[str(mib)].rows
        if row.get("mode") == mode
    ]
    kept = [(x / MIB, y) for x, y in points if isinstance(x, float) and isinstance(y, float)]
    return [x for x, _ in kept], [y for _, y in kept]


def dirty(tables: Tables) -> str:
    """The pause against what the guest has written."""
    cells = tables["dirty"]
    body, count = [], 0
    for mib in DIRTY_MIB:
        cell = cells[str(mib)]
        pauses = [cell.column("pause_ms", mode=mode) for mode in MODES]
        count = len(pauses[0])
        ready = spread(cell.column("poll_until_ready_ms", mode="live"))
        body.append([f"{mib:,} MiB", *(spread(values) for values in pauses), ready])
    slopes = {mode: figures.line(*dirty_points(cells, mode, "pause_ms")) for mode in MODES}
    live, diff = slopes["live"], slopes["diff"]
    head = ["written since the last branch", *(f"`{mode}`" for mode in MODES), "`live`, ready"]
    said = f"""The pause as a straight line by least squares: `live` {live.intercept:.2f} ms and
    {live.slope:.4f} ms for each dirty MiB, `diff` {diff.intercept:.1f} ms and {diff.slope:.3f} ms.
    The reference's `diff`: {reference.DIRTY_INTERCEPT_MS:.0f} ms and
    {reference.DIRTY_SLOPE_MS:.1f} ms."""
    return f"""\
A guest of 2,048 MiB, {count} of each, in ms, {spread_head(count)}:

{rows(head, body)}

{prose(said)}"""


def chain(tables: Tables) -> str:
    """Branch after branch of one source."""
    cell = tables["chain"]["live"]
    pauses = cell.column("pause_ms")
    named = {
        "pause (request to confirmed resume)": "pause_ms",
        "between QEMU's STOP and RESUME": "held_by_vmm_ms",
        **{f"`{phase}`": f"phases_ms.{phase}" for phase in WINDOW},
        "ready after the request": "poll_until_ready_ms",
    }
    body = [[name, spread(cell.column(column))] for name, column in named.items()]
    ends = figures.ratio(pauses[-ENDS:], pauses[:ENDS])
    stored, written = (sum(cell.column(name)) for name in ("memory_bin_bytes", "dirty_bytes"))
    return f"""\
{len(pauses)} branches of one idle source of 1.5 GiB with a disk, all kept, in ms:

{rows(["", spread_head(len(pauses))], body)}

* The last {ENDS} pause {between(ends)} as long as the first {ENDS}.
* A snapshot stores {stored / written:.2f} times what was dirty: pages of zeros are left out."""


PHASES = ("claim", "disk", "launch", "map", "network", "load", "resume", "renew", "hand_out")


def children(tables: Tables) -> str:
    """What a child costs."""
    one, ten = tables["children"]["1"], tables["children"]["10"]
    starts = one.column("start_ms", kind="child")
    phases = [(name, one.column(f"start_phases_ms.{name}", kind="child")) for name in PHASES]
    most = sorted(((median(v), name) for name, v in phases if v), reverse=True)[:3]
    parts = ", ".join(f"`{name}` {shown(value)}" for value, name in most)
    memory = [value / MIB for value in one.column("private_start_bytes", kind="child")]
    cpu = [
        sum(pair) for pair in zip(
            one.column("guest_cpu_ms", kind="child"), one.column("vmm_cpu_ms", kind="child"),
            strict=True,
        )
    ]  # fmt: skip
    answered = ten.column("last_answered_ms", kind="all")
    body = [
        ["start of one child, to the confirmed renewal, ms", spread(starts)],
        ["until it has run `true`, ms", spread(one.column("answered_ms", kind="child"))],
        ["ten children of one request, until the last has run `true`, ms", spread(answered)],
        ["processor time of one VMM until then, ms", spread(cpu)],
        ["memory of its own before anybody has used it, MiB", spread(memory)],
    ]
    return f"""\
`python` of 512 MiB with a disk; {len(starts)} single children and {len(answered)} times ten:

{rows(["", spread_head(len(starts))], body)}

Most of a start, in the median: {parts} ms."""


# What each way of QEMU's leaves out.
WAYS = {
    "savevm": "RAM, devices, disk, all in the disk's file",
    "migrate to a file": "RAM and devices, not the disk; the file is of no instant before its end",
    "background-snapshot": "RAM and devices, not the disk",
}


def peers(tables: Tables) -> str:
    """What QEMU itself offers, beside forkd."""
    cell, live = tables["peers"]["1536"], tables["chain"]["live"]
    body = [
        [
            "forkd, `live`",
            spread(live.column("held_by_vmm_ms")),
            spread(live.column("poll_until_ready_ms")),
            shown(median(live.column("memory_bin_bytes")) / MIB),
            "RAM, devices, disk; what has changed since the last one",
        ]
    ]
    for way, saves in WAYS.items():
        labels = {"way": way}
        written = cell.column("written_bytes", **labels)
        body.append(
            [
                f"QEMU, {way}",
                spread(cell.column("held_by_vmm_ms", **labels)),
                spread(cell.column("saved_ms", **labels)),
                shown(median(written) / MIB) if written else "not measured",
                saves,
            ]
        )
    count = len(cell.column("saved_ms", way="savevm"))
    guest = "an idle guest of 1.5 GiB"
    head = [guest, "pause, ms", "saved after, ms", "MiB, median", "what it saves"]
    said = f"""{count} of each of QEMU's, in turns, {spread_head(count)}; the pause is the time
    between STOP and RESUME:"""
    return f"""\
{prose(said)}

{rows(head, body)}"""


def machine(tables: Tables) -> str:
    """The machines that the rows come from, and how busy they were."""
    # What is counted has none: it does not depend on the machine.
    heads = [cell.head for cells in tables.values() for cell in cells.values() if cell.head]
    kinds = {
        (
            f"{head['host']['cpus']} cores ({head['host']['cpu_model']})",
            f"Linux {head['host']['kernel']}",
            head["qemu"].removeprefix("QEMU emulator version "),
            head["accelerator"],
            head["store_file_system"],
        )
        for head in heads
    }
    lines = [
        f"{cores}, {kernel}, QEMU {qemu} with {accelerator.upper()}, snapshots on {system}"
        for cores, kernel, qemu, accelerator, system in sorted(kinds)
    ]
    loads = [load for head in heads for load in head["load_before_and_after"][:1]]
    dates = sorted({head["date"] for head in heads})
    commits = sorted({head["commit"] for head in heads})
    quick = " Quick runs: few rows each." if any(head["quick"] for head in heads) else ""
    said = f"""**The machine.** {"; ".join(lines)}. Measured {", ".join(dates)} at
    {", ".join(commits)}; load before a cell {shown(min(loads))} to {shown(max(loads))}.{quick}
    Guests are emulated here, so no figure says how fast KVM is."""
    return prose(said)


def count(tables: Tables) -> str:
    """Instructions of starts and branches on KVM."""
    return counts.table(tables["count"])


# Each generated block, by its name in the document.
BLOCKS: Mapping[str, Callable[[Tables], str]] = {
    "machine": machine,
    "modes": modes,
    "ram": ram,
    "dirty": dirty,
    "chain": chain,
    "peers": peers,
    "children": children,
    "count": count,
}
