"""The harness: statistics, files of rows, generated blocks, and what is measured again."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from forkd_bench import blocks, counts, data, figures, measure, peers, plots, report, text
from forkd_bench.__main__ import measured, results
from forkd_bench.measure import MeasureError, Plan
from forkd_bench.tables import Cell, Table, tables

BENCH = Path(__file__).resolve().parents[1]

FAKE = """#!{python}
import json, sys
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
if "--fail" in sys.argv:
    sys.exit("no image to boot")
row = {{"iteration": 1, "mode": "live", "wait": "ready", "pause_ms": 1.5, "round_trip_ms": None,
       "stored_bytes": 4096, "ready_ms": 2, "note": "a, b"}}
print(json.dumps({{"forkd": "0", "accelerator": "tcg", "settings": {{}},
                  "complete": "--cut" not in sys.argv, "rows": [row]}}))
"""


def fake_forkd(folder: Path) -> tuple[Path, Path]:
    """A program that reports one row of whatever it is asked, and the log of what it was asked."""
    program, log = folder / "forkd", folder / "log"
    program.write_text(FAKE.format(python=sys.executable, log=str(log)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program, log


def plan(folder: Path, program: Path, *options: str, again: bool = False) -> Plan:
    table = Table("t", "?", (Cell("a", ("branch", *options)), Cell("b", ("branch", "--b"))))
    return Plan([table], program, folder, quick=True, again=again)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [figures.percentile(values, p) for p in (0, 20, 21, 50, 90, 100)] == [1, 1, 2, 3, 5, 5]
    with pytest.raises(ValueError, match="no values"):
        figures.percentile([], 50)


def test_a_ratio_lies_in_its_interval_which_narrows_with_more_values() -> None:
    few = figures.ratio([10, 20, 30], [1, 2, 3])
    many = figures.ratio([10, 20, 30] * 40, [1, 2, 3] * 40)
    assert few.value == many.value == 10
    assert few.low <= many.low <= 10 <= many.high <= few.high
    assert few.high - few.low > many.high - many.low
    assert figures.ratio([10, 20, 30], [1, 2, 3]) == few, "the seed is fixed"


def test_a_line_is_found_through_its_points() -> None:
    found = figures.line([0, 1, 2], [5, 7, 9])
    assert (round(found.slope, 9), round(found.intercept, 9)) == (2, 5)


def test_a_file_has_the_references_columns_first_and_what_was_not_measured_is_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t/a.csv"
    row = {"iteration": 1, "mode": "live", "pause_ms": 1.5, "round_trip_ms": None}
    row |= {"stored_bytes": 4096, "ready_ms": 2, "wait": "ready", "note": 'says "x", y'}
    data.write(path, {"machine": "m"}, [row, row | {"pause_ms": 2.5}])
    assert path.read_text().splitlines()[1] == (
        "mode,iteration,http_round_trip_ms,pause_ms,memory_bin_bytes,poll_until_ready_ms,wait,note"
    )
    cell = data.read(path)
    assert cell.head == {"machine": "m"}
    assert cell.rows[0]["note"] == 'says "x", y'
    assert cell.column("pause_ms", mode="live") == [1.5, 2.5]
    assert cell.column("pause_ms", mode="full") == []
    assert cell.column("http_round_trip_ms") == []


@pytest.mark.parametrize("text", [None, "", "no json\n1\n"])
def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "a.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(data.DataError, match=r"a\.csv.*make bench"):
        data.read(path)


def test_what_was_measured_is_not_measured_again_until_it_must(tmp_path: Path) -> None:
    program, log = fake_forkd(tmp_path)
    assert measure.measure(plan(tmp_path, program)) == 2
    assert measure.measure(plan(tmp_path, program)) == 0
    assert log.read_text().splitlines() == ["bench branch --json", "bench branch --json --b"]
    assert measure.measure(plan(tmp_path, program, "--c")) == 1, "another command"
    assert measure.measure(plan(tmp_path, program, "--c", again=True)) == 2
    program.write_text(program.read_text() + "# another program\n")
    assert measure.measure(plan(tmp_path, program, "--c")) == 2
    head = data.read(tmp_path / "bench/data/t/a.csv").head
    assert (head["command"], head["host"]["kernel"]) == (["branch", "--c"], os.uname().release)
    assert len(head["load_before_and_after"]) == 2


@pytest.mark.parametrize(("option", "said"), [("--fail", "no image"), ("--cut", "interrupted")])
def test_a_measurement_that_fails_leaves_no_file_and_says_why(
    tmp_path: Path, option: str, said: str
) -> None:
    program, _ = fake_forkd(tmp_path)
    with pytest.raises(MeasureError, match=said):
        measure.measure(plan(tmp_path, program, option))
    assert not list(tmp_path.glob("bench/data/t/*"))
    with pytest.raises(MeasureError, match="make build images"):
        measure.measure(plan(tmp_path, tmp_path / "no-program"))


def test_a_monitor_keeps_events_apart_from_answers_and_names_refusals() -> None:
    ours, theirs = socket.socketpair()
    event = {"event": "STOP", "timestamp": {"seconds": 2, "microseconds": 500}}
    said = [{"QMP": {}}, {"return": {}}, event, {"return": {"running": True}}]
    said += [{"error": {"desc": "no disk"}}]
    with theirs:
        theirs.sendall("".join(json.dumps(each) + "\n" for each in said).encode())
        monitor = peers.Monitor(ours)
        assert monitor.ask("query-status") == {"running": True}
        assert monitor.moment_ms("STOP") == 2000.5
        with pytest.raises(peers.PeerError, match="RESUME"):
            monitor.moment_ms("RESUME")
        with pytest.raises(peers.PeerError, match="savevm: no disk"):
            monitor.ask("savevm")
    with pytest.raises(peers.PeerError, match="has ended"):
        monitor.ask("cont")
    ours.close()


def test_only_what_is_between_the_marks_is_replaced() -> None:
    document = "above\n<!-- generated: a -->\nold\n<!-- end: a -->\nbelow\n"
    new = blocks.replaced(document, {"a": "new\n"})
    assert new == "above\n<!-- generated: a -->\nnew\n<!-- end: a -->\nbelow\n"
    assert blocks.replaced(new, {"a": "new"}) == new
    for wrong in ({}, {"a": "", "b": ""}):
        with pytest.raises(blocks.MarksError):
            blocks.replaced(document, wrong)
    with pytest.raises(blocks.MarksError, match="end"):
        blocks.replaced("<!-- generated: a -->\n", {"a": ""})


def test_figures_are_shown_with_three_digits_that_count() -> None:
    shown = [text.shown(value) for value in (0.004, 1.234, 12.34, 123.4, 13_550.0)]
    assert shown == ["0.0040", "1.23", "12.3", "123", "13,550"]
    assert report.spread([1.0] * 49) == "1.00 / 1.00 / 1.00"
    assert report.spread([1.0] * 50) == "1.00 / 1.00 / 1.00 / 1.00"


def test_quick_tables_have_the_same_cells() -> None:
    names = [[(t.name, c.name) for t in tables(quick) for c in t.cells] for quick in (True, False)]
    assert names[0] == names[1]
    measured_here = {table.name for table in tables(quick=True)}
    assert {"machine", "count", *measured_here} == set(report.BLOCKS)


def test_a_count_is_shown_with_its_spread_and_one_that_is_missing_is_an_error(
    tmp_path: Path,
) -> None:
    file = tmp_path / "debian12.csv"
    file.write_text(
        "work,memory_mib,item,unit,median,least,most,first\n"
        "branch,256,window,instructions,3197000,2959000,3332000,3390000\n"
    )
    cell = data.read_counts(file)
    assert counts.counted(cell, "branch", "window", 256) == "3.20 (2.96 to 3.33)"
    assert counts.counted(cell, "branch", "window", 1536) is None
    assert counts.counted(cell, "branch", "pause", 256) is None
    other = data.Cell({}, [])
    row = counts.line([cell, other], "pause", "branch", "window", 256)
    assert row == ["pause", "3.20 (2.96 to 3.33)", "not counted"]
    with pytest.raises(data.DataError, match="nobody counted pause of branch"):
        counts.line([cell, other], "pause", "branch", "pause", 256)
    with pytest.raises(data.DataError, match="make count WRITE=1"):
        data.read_counts(tmp_path / "debian13.csv")


def test_the_committed_results_are_those_of_the_committed_rows() -> None:
    assert results(check=True) == []


def test_the_same_rows_give_the_same_picture(tmp_path: Path) -> None:
    rows = measured()
    first, second = (plots.draw("pause-in-a-chain", rows, tmp_path / name) for name in "ab")
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_the_command_line_names_the_tables_that_there_are() -> None:
    command = [sys.executable, "-m", "forkd_bench", "run", "no-such-table"]
    run = subprocess.run(command, cwd=BENCH, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "no such table: no-such-table; there are modes, ram" in run.stderr
    assert json.dumps(run.stdout) == '""'
