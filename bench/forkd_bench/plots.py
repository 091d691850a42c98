"""Draws the plots of the results, as SVG and PNG.

Guarantees: the same rows give the same file; a line has its name beside it, and colours that can be
told apart in print and on a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from . import figures, reference
from .report import MODES, Cells, Tables, dirty_points
from .tables import DIRTY_MIB, RAM_MIB

# Of medium lightness: they stand out from white and from black.
COLOURS = {"live": "#1a7f4e", "diff": "#c46a00", "full": "#b03a5b"}
GREY = "#808080"
# Of a channel, from 0 to 1.
ROUNDING = 0.1
# In points, with the room around it.
NAME_HEIGHT = 11.5

STYLE: dict[Any, object] = {
    "svg.hashsalt": "forkd",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class End:
    """Where a line ends, and what it is called."""

    x: float
    y: float
    name: str
    colour: str


def plotted(axes: Axes, xs: Sequence[float], ys: Sequence[float], name: str, colour: str) -> End:
    """Draws a line through points."""
    axes.plot(xs, ys, color=colour, marker="o", markersize=3, linewidth=1.4)
    return End(xs[-1], ys[-1], name, colour)


def name_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Names lines at their ends, one name above the other. Scales and limits must be set."""
    axes.autoscale_view()
    points_per_pixel = 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    heights = [axes.transData.transform((end.x, end.y))[1] * points_per_pixel for end in ends]
    above = -math.inf
    for height, end in sorted(zip(heights, ends, strict=True), key=lambda pair: pair[0]):
        place = max(height, above + NAME_HEIGHT)
        above = place
        axes.annotate(
            end.name, (end.x, end.y), xytext=(6, place - height), textcoords="offset points",
            color=end.colour, va="center", annotation_clip=False,
        )  # fmt: skip


def ram(axes: Axes, cells: Cells) -> None:
    """The pause against RAM, all modes, and the reference's."""
    ends = []
    for mode in MODES:
        medians = [figures.median(cells[str(mib)].column("pause_ms", mode=mode)) for mib in RAM_MIB]
        ends.append(plotted(axes, RAM_MIB, medians, mode, COLOURS[mode]))
    for (mode, place), pauses in reference.RAM_PAUSE_MS.items():
        name = f"reference, {mode}, {place}"
        ends.append(plotted(axes, reference.RAM_MIB, pauses, name, GREY))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(RAM_MIB, [f"{mib:,}" for mib in RAM_MIB])
    axes.set_xlabel("RAM of the idle guest, MiB")
    axes.set_ylabel("pause, ms, median")
    axes.set_title("The pause and RAM", loc="left")
    name_ends(axes, ends)


def dirty(axes: Axes, cells: Cells) -> None:
    """The pause against what was written, with the lines by least squares."""
    ends = []
    for mode in MODES:
        xs, ys = dirty_points(cells, mode, "pause_ms")
        axes.scatter(xs, ys, s=9, color=COLOURS[mode], alpha=0.7, linewidths=0)
        fit = figures.line(xs, ys)
        # On a logarithmic axis a straight line is a curve.
        along = [float(x) for x in np.linspace(0, DIRTY_MIB[-1], 200)]
        fitted = [fit.intercept + fit.slope * x for x in along]
        axes.plot(along, fitted, color=COLOURS[mode], linewidth=1)
        name = f"{mode}: {fit.slope:.2g} ms per MiB"
        ends.append(End(along[-1], fitted[-1], name, COLOURS[mode]))
    axes.set_yscale("log")
    axes.set_xlabel("written since the last branch, MiB")
    axes.set_ylabel("pause, ms")
    axes.set_title("The pause and what the guest has written", loc="left")
    name_ends(axes, ends)


def chain(axes: Axes, cells: Cells) -> None:
    """The pause of each branch of a chain."""
    pauses = cells["live"].column("pause_ms")
    axes.plot(range(1, len(pauses) + 1), pauses, ".", color=COLOURS["live"], markersize=4)
    median = figures.median(pauses)
    axes.hlines(median, 1, len(pauses), color=GREY, linewidth=0.8)
    axes.annotate(
        f"median {median:.2f} ms", (len(pauses), median), xytext=(6, 0),
        textcoords="offset points", color=GREY, va="center", annotation_clip=False,
    )  # fmt: skip
    axes.set_ylim(0, max(pauses) * 1.1)
    axes.set_xlabel("branch of the same source")
    axes.set_ylabel("pause, ms")
    axes.set_title("The pause from branch to branch", loc="left")


def distribution(axes: Axes, cells: Cells) -> None:
    """The part of pauses that are no longer than so much."""
    pauses = sorted(cells["live"].column("pause_ms"))
    parts = [100 * rank / len(pauses) for rank in range(1, len(pauses) + 1)]
    axes.step(pauses, parts, where="post", color=COLOURS["live"], linewidth=1.4)
    percents = (50, 90, 99) if len(pauses) >= figures.P99_COUNT_MIN else (50, 90)
    for percent in percents:
        value = figures.percentile(pauses, percent)
        axes.plot([value], [percent], "o", color=COLOURS["live"], markersize=4)
        axes.annotate(
            f"p{percent} {value:.2f} ms", (value, percent), xytext=(7, -9),
            textcoords="offset points", color=COLOURS["live"],
        )  # fmt: skip
    axes.set_xlim(0, None)
    axes.set_xlabel("pause, ms")
    axes.set_ylabel("of all branches, %")
    axes.set_title(f"{len(pauses)} live branches of an idle guest of 1.5 GiB", loc="left")


Draw = Callable[[Axes, Cells], None]

# Each with the table that it is drawn from.
PLOTS: Mapping[str, tuple[str, Draw]] = {
    "pause-and-ram": ("ram", ram),
    "pause-and-dirty-memory": ("dirty", dirty),
    "pause-in-a-chain": ("chain", chain),
    "pause-distribution": ("chain", distribution),
}


def draw(name: str, tables: Tables, folder: Path) -> list[Path]:
    """Draws a plot; its files."""
    table, onto = PLOTS[name]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7, 3.6))
        onto(figure.subplots(), tables[table])
        files = [folder / f"{name}.{ending}" for ending in ("svg", "png")]
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            nobody = {"Date": None} if file.suffix == ".svg" else {"Software": None}
            figure.savefig(file, metadata=nobody, dpi=160, bbox_inches="tight", transparent=True)
    return files


def same(one: Path, other: Path) -> bool:
    """Whether two pictures show the same, up to what rounding does on another processor."""
    if not (one.exists() and other.exists()):
        return False
    if one.suffix == ".svg":
        # Drawn with the PNG, which is compared.
        return True
    first, second = (imread(file) for file in (one, other))
    return first.shape == second.shape and bool(np.abs(first - second).max() <= ROUNDING)
