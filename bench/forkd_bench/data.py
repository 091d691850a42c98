"""Files of raw rows: CSV, below a first line that says what was measured, where and how.

Guarantees: a file is there whole or not at all; what was not measured is empty, never 0.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Value = float | str | None
Row = Mapping[str, Value]

# The columns of the reference's tables, each with the column of ours that it stands for.
REFERENCE_COLUMNS = {
    "mode": "mode",
    "iteration": "iteration",
    "http_round_trip_ms": "round_trip_ms",
    "pause_ms": "pause_ms",
    "memory_bin_bytes": "stored_bytes",
    "poll_until_ready_ms": "ready_ms",
}


class DataError(Exception):
    """A file cannot be used; the text names it and says what to do."""


@dataclass(frozen=True)
class Cell:
    """A file's content."""

    head: Mapping[str, Any]
    rows: Sequence[Row]

    def column(self, name: str, **labels: float | str) -> list[float]:
        """The measured figures of that name, in rows with these labels."""
        chosen = (row for row in self.rows if all(row.get(k) == v for k, v in labels.items()))
        return [value for row in chosen if isinstance(value := row.get(name), float)]


def write(path: Path, head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a file, the reference's columns first where there is a branch in each row."""
    if not rows:
        raise DataError(f"{path}: nothing was measured")
    ours = list(rows[0])
    first = REFERENCE_COLUMNS if "pause_ms" in ours else {}
    columns = dict(first) | {name: name for name in ours if name not in first.values()}
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".part")
    with whole.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {json.dumps(head, sort_keys=True)}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(_text(row[own]) for own in columns.values())
    whole.replace(path)


def read(path: Path) -> Cell:
    """Reads a file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head = json.loads(file.readline().removeprefix("# "))
            rows = [{k: _value(v) for k, v in row.items()} for row in csv.DictReader(file)]
    except FileNotFoundError:
        raise DataError(f"{path} is missing: run `make bench`") from None
    except ValueError as error:
        raise DataError(
            f"{path} cannot be read: {error}; remove it and run `make bench`"
        ) from error
    return Cell(head, rows)


def read_counts(path: Path) -> Cell:
    """Reads a table of `make count`, which has no line about the machine."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [{k: _value(v) for k, v in row.items()} for row in csv.DictReader(file)]
    except FileNotFoundError:
        raise DataError(f"{path} is missing: run `make count WRITE=1`") from None
    return Cell({}, rows)


def _text(value: Any) -> str:
    if value is None:
        return ""
    # Clocks give no more than microseconds.
    return str(round(value, 3)) if isinstance(value, float) else str(value)


def _value(text: str) -> Value:
    if text == "":
        return None
    try:
        return float(text)
    except ValueError:
        return text
