"""Runs cells, one after the other.

Guarantees: a cell that was measured with the same command and the same program is not measured
again; an interrupt ends the running measurement, which removes what it has started, and keeps the
cells before it. Does not do: run two at a time; they would disturb each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import data, machine, peers
from .tables import Cell, Table


class MeasureError(Exception):
    """A measurement failed; the text says which, why, and what to do."""


@dataclass(frozen=True)
class Plan:
    """What is measured, with which program, into which folder."""

    tables: Sequence[Table]
    forkd: Path
    root: Path
    quick: bool
    again: bool = False

    def path(self, table: Table, cell: Cell) -> Path:
        """The file of a cell."""
        return self.root / "bench/data" / table.name / f"{cell.name}.csv"


def measure(plan: Plan) -> int:
    """Measures what is missing; how many cells were measured."""
    if not os.access(plan.forkd, os.X_OK):
        raise MeasureError(f"{plan.forkd} is missing: run `make build images` first")
    program = hashlib.sha256(plan.forkd.read_bytes()).hexdigest()[:16]
    wanted = [(table, cell) for table in plan.tables for cell in table.cells]
    missing = [
        (table, cell)
        for table, cell in wanted
        if plan.again or not is_measured(plan.path(table, cell), cell, program)
    ]
    say(f"{len(missing)} of {len(wanted)} cells to measure")
    begun = time.monotonic()
    for done, (table, cell) in enumerate(missing):
        spent = time.monotonic() - begun
        left = f", about {spent / done * (len(missing) - done) / 60:.0f} min left" if done else ""
        say(f"[{done + 1}/{len(missing)}] {table.name} {cell.name}{left}")
        before = machine.load()
        kind, *options = cell.command
        report = of_peers(plan, *options) if kind == "peers" else run(plan.forkd, cell)
        head = machine.describe(plan.root, report) | {
            "command": list(cell.command),
            "program": program,
            "quick": plan.quick,
            "load_before_and_after": [before, machine.load()],
        }
        data.write(plan.path(table, cell), head, report["rows"])
    return len(missing)


def is_measured(path: Path, cell: Cell, program: str) -> bool:
    """Whether the file has rows of this command and this program."""
    try:
        head = data.read(path).head
    except data.DataError:
        return False
    return head.get("command") == list(cell.command) and head.get("program") == program


def of_peers(plan: Plan, mem_size_mib: str, iterations: str) -> dict[str, Any]:
    """What the peers' measurement finds, as `forkd bench` would report it."""
    images = Path(os.environ.get("FORKD_IMAGE_DIR") or plan.root / "build/images")
    try:
        rows = peers.measure(images, int(mem_size_mib), int(iterations))
    except (OSError, subprocess.CalledProcessError, peers.PeerError) as error:
        raise MeasureError(f"the peers cannot be measured: {error}; see `make images`") from error
    settings = {"mem_size_mib": int(mem_size_mib), "iterations": int(iterations)}
    return {"forkd": None, "accelerator": "tcg", "settings": settings, "rows": rows}


def run(forkd: Path, cell: Cell) -> dict[str, Any]:
    """What `forkd bench` reports of a cell."""
    kind, *options = cell.command
    command = [str(forkd), "bench", kind, "--json", *options]
    # In a session of its own: a key on the terminal shall reach it once, and through us.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, errors = process.communicate()
        except BaseException:
            # It ends its daemon and removes its files, which takes a moment.
            process.send_signal(signal.SIGTERM)
            process.communicate()
            raise
    if process.returncode != 0:
        raise MeasureError(f"`{' '.join(command)}` failed: {errors.strip() or process.returncode}")
    report: dict[str, Any] = json.loads(out)
    if not report["complete"]:
        raise MeasureError(f"`{' '.join(command)}` was interrupted")
    return report


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)
