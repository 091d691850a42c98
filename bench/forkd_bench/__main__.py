"""The command line: see the package."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from . import counts, data, measure, plots, report
from .blocks import MarksError, replaced
from .measure import MeasureError, Plan, say
from .report import Tables
from .tables import tables

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/results.md"
FIGURES = ROOT / "docs/figures"
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


def arguments() -> argparse.Namespace:
    """What is asked for."""
    names = [table.name for table in tables(quick=True)]
    parser = argparse.ArgumentParser(prog="forkd_bench", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="measure what was not measured yet")
    run.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(names)}")
    run.add_argument("--quick", action="store_true", help="few rows of each")
    run.add_argument("--again", action="store_true", help="what was measured, too")
    results = verbs.add_parser("results", help="write the results from what was measured")
    results.add_argument("--check", action="store_true", help="only tell whether they would change")
    given = parser.parse_args()
    unknown = set(getattr(given, "tables", ())) - set(names)
    if unknown:
        parser.error(f"no such table: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return given


def measured() -> Tables:
    """All rows that were measured."""
    folder = ROOT / "bench/data"
    counted = {name: data.read_counts(folder / f"count/{name}.csv") for name in counts.HOSTS}
    return {"count": counted} | {
        table.name: {
            cell.name: data.read(folder / table.name / f"{cell.name}.csv") for cell in table.cells
        }
        for table in tables(quick=True)
    }


def results(check: bool) -> list[str]:
    """Writes what is generated; what has changed by it."""
    found = measured()
    blocks = {name: write(found) for name, write in report.BLOCKS.items()}
    old = RESULTS.read_text()
    new = replaced(old, blocks)
    changed = [] if new == old else [str(RESULTS.relative_to(ROOT))]
    if new != old and not check:
        RESULTS.write_text(new)
    with tempfile.TemporaryDirectory() as folder:
        for name in plots.PLOTS:
            drawn = plots.draw(name, found, Path(folder))
            if all(plots.same(FIGURES / file.name, file) for file in drawn):
                continue
            changed += [str((FIGURES / file.name).relative_to(ROOT)) for file in drawn]
            if not check:
                FIGURES.mkdir(exist_ok=True)
                for file in drawn:
                    (FIGURES / file.name).write_bytes(file.read_bytes())
    return changed


def main() -> int:
    """Does what is asked for; the exit code."""
    given = arguments()
    try:
        if given.verb == "run":
            wanted = [t for t in tables(given.quick) if not given.tables or t.name in given.tables]
            program = os.environ.get("FORKD") or str(ROOT / "target/release/forkd")
            measure.measure(Plan(wanted, Path(program), ROOT, given.quick, given.again))
            return 0
        changed = results(given.check)
        say("".join(f"{name}\n" for name in changed) + f"{len(changed)} files changed")
        return EXIT_FAILED if given.check and changed else 0
    except (data.DataError, MarksError, MeasureError) as error:
        say(f"error: {error}")
        return EXIT_FAILED
    except KeyboardInterrupt:
        say("interrupted; run it again to go on")
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
