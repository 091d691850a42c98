"""What the driver of an interpreter makes of a notebook's code, and of figures and tables.

Method: the driver as the agent starts it, on a socket, with IPython, matplotlib and pandas.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src/eval"
DRIVER, NOTEBOOK, CHARTS = (
    (SOURCES / name).read_text() for name in ("driver.py", "notebook.py", "charts.py")
)
PARTS, DISPLAYS = 1, 4
CHART, TABLE = "application/vnd.forkd.chart+json", "application/vnd.forkd.table+json"
SECS_MAX = 120


@dataclass
class Answer:
    """What came of a piece of code; forms of displays by their media types."""

    value: str | None = None
    error: tuple[str, str, str] | None = None
    shown: list[dict[str, bytes]] = field(default_factory=list)


class Interpreter:
    """The driver, and the socket that the agent would have."""

    def __init__(self, *options: str) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(SECS_MAX)
        command: list[str] = [sys.executable, *options, "-u", "-c", DRIVER, NOTEBOOK, CHARTS]
        with theirs:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )

    def run(self, source: str) -> Answer:
        """Runs code, with everything that can be wanted of it."""
        code = source.encode()
        self._channel.sendall(struct.pack("<IBI", len(code), PARTS | DISPLAYS, 0) + code)
        answer, forms = Answer(), dict[int, dict[str, bytes]]()
        while True:
            kind, length = struct.unpack("<cI", self._receive(5))
            content = self._receive(length)
            if kind == b"P":
                _, display, _, mime_length = struct.unpack("<BIBB", content[:7])
                mime, data = content[7 : 7 + mime_length].decode(), content[7 + mime_length :]
                of_display = forms.setdefault(display, {})
                of_display[mime] = of_display.get(mime, b"") + data
                continue
            if kind == b"R":
                answer.value = content.decode()
            if kind == b"E":
                name, value, trace = content.decode().split("\0")
                answer.error = (name, value, trace)
            answer.shown = [forms[display] for display in sorted(forms)]
            return answer

    def printed(self) -> str:
        """Ends it; all that was printed."""
        self._channel.close()
        out, _ = self._process.communicate(timeout=SECS_MAX)
        return out.decode()

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._channel.recv(count - len(data))
            assert piece, "the interpreter has ended"
            data += piece
        return data


@pytest.fixture
def interpreter() -> Iterator[Interpreter]:
    made = Interpreter()
    yield made
    made.printed()


def chart(interpreter: Interpreter, code: str) -> dict[str, Any]:
    """The data of the one figure that code draws."""
    answer = interpreter.run(f"import matplotlib.pyplot as plt\n{code}\nNone")
    assert answer.error is None, answer.error
    [figure] = answer.shown
    assert figure["image/png"].startswith(b"\x89PNG")
    made: dict[str, Any] = json.loads(figure[CHART])
    return made


def test_a_command_of_the_shell_runs_and_its_output_is_a_value_too() -> None:
    interpreter = Interpreter()
    assert interpreter.run("!echo from a shell").error is None
    assert interpreter.run("word = 'kept'\nlines = !echo {word}; echo b\nlines").value is not None
    assert interpreter.run("list(lines)").value == "['kept', 'b']"
    assert interpreter.run("if True:\n    !echo within a block").error is None
    printed = interpreter.printed()
    assert "from a shell" in printed
    assert "within a block" in printed


def test_magics_work_on_the_variables_of_the_code_and_fail_as_code_does(
    interpreter: Interpreter,
) -> None:
    assert interpreter.run("%matplotlib inline\nx = 1").error is None
    backend = "import matplotlib.pyplot\nmatplotlib.get_backend().lower()"
    assert interpreter.run(backend).value == "'agg'", "figures are shown by the driver"
    assert interpreter.run("%%time\nx += 1").error is None
    assert interpreter.run("%env FROM_MAGIC=told").error is None
    assert interpreter.run("import os\nos.environ['FROM_MAGIC'], x").value == "('told', 2)"
    assert interpreter.run("%%bash\nexit 3").error is not None
    unknown = interpreter.run("%no_such_magic")
    assert unknown.error is not None
    assert unknown.error[0] == "UsageError"
    assert interpreter.run("x").value == "2", "the interpreter is the same"
    assert interpreter.run("display").value == interpreter.run("display").value
    assert [form["text/plain"] for form in interpreter.run("display(x)").shown] == [b"2"]


def test_indented_code_runs_and_what_is_no_code_at_all_says_where(
    interpreter: Interpreter,
) -> None:
    assert interpreter.run("  x = 3\n  x").value == "3"
    error = interpreter.run("x = = 3").error
    assert error is not None
    assert error[0] == "SyntaxError"
    assert "x = = 3" in error[2]
    error = interpreter.run("def f(:\n  100 %\n").error
    assert error is not None
    assert error[0] == "SyntaxError"


def test_without_ipython_the_error_names_the_remedy() -> None:
    # Isolated, and without the packages of this environment.
    interpreter = Interpreter("-I", "-S")
    error = interpreter.run("!ls").error
    assert error is not None
    assert error[0] == "ModuleNotFoundError"
    assert "pip install ipython" in error[1]
    assert interpreter.run("1 + 1").value == "2"
    interpreter.printed()


def test_display_of_ipython_shows_here(interpreter: Interpreter) -> None:
    code = "from IPython.display import display, HTML\ndisplay(HTML('<b>bold</b>'))"
    [shown] = interpreter.run(code).shown
    assert shown["text/html"] == b"<b>bold</b>"


def test_lines_have_their_points_titles_units_and_marks(interpreter: Interpreter) -> None:
    line = chart(
        interpreter,
        "plt.plot([1, 2, 3], [4, 5, 6], label='up')\nplt.plot([1, 2], [2, float('nan')])\n"
        "plt.title('Speed')\nplt.xlabel('Time (s)')\nplt.ylabel('Way [m]')\nplt.show()",
    )
    assert (line["type"], line["title"]) == ("line", "Speed")
    assert (line["x_label"], line["x_unit"], line["y_unit"]) == ("Time (s)", "s", "m")
    up, other = line["elements"]
    assert up == {"label": "up", "points": [[1, 4], [2, 5], [3, 6]]}
    assert other == {"label": "Series 2", "points": [[1, 2]]}
    assert line["x_scale"] == "linear"
    assert len(line["x_ticks"]) == len(line["x_tick_labels"]) > 2


def test_scales_say_what_they_are(interpreter: Interpreter) -> None:
    dates = chart(
        interpreter,
        "import datetime as d\nplt.semilogy([d.date(2026, 1, 1), d.date(2026, 1, 2)], [1, 1000])",
    )
    assert (dates["x_scale"], dates["y_scale"]) == ("datetime", "log")
    assert dates["elements"][0]["points"][1] == ["2026-01-02", 1000]
    words = chart(interpreter, "plt.plot(['a', 'b'], [1, 2])")
    assert words["x_scale"] == "categorical"
    assert words["x_tick_labels"] == ["a", "b"]


def test_points_bars_slices_and_boxes_are_told_apart(interpreter: Interpreter) -> None:
    scatter = chart(interpreter, "plt.scatter([1, 2], [3, 4], label='cloud')")
    assert scatter["type"] == "scatter"
    assert scatter["elements"] == [{"label": "cloud", "points": [[1, 3], [2, 4]]}]
    bar = chart(interpreter, "plt.bar(['a', 'b'], [3, 4], label='sold')")
    assert bar["type"] == "bar"
    assert bar["elements"][1] == {"label": "b", "group": "sold", "value": 4}
    lying = chart(interpreter, "plt.barh(['a', 'b'], [3, 4])")
    assert [(item["label"], item["value"]) for item in lying["elements"]] == [("a", 3), ("b", 4)]
    pie = chart(interpreter, "plt.pie([1, 3], labels=['a', 'b'])")
    assert pie["type"] == "pie"
    assert pie["elements"][0] == {"label": "a", "angle": 90, "radius": 1}
    box = chart(interpreter, "plt.boxplot([[1, 2, 3, 4, 5, 40]])")
    assert box["type"] == "box_and_whisker"
    [whiskers] = box["elements"]
    assert (whiskers["min"], whiskers["median"], whiskers["outliers"]) == (1, 3.5, [40])


def test_a_figure_of_several_charts_has_them_all(interpreter: Interpreter) -> None:
    both = chart(
        interpreter,
        "figure, axes = plt.subplots(2)\naxes[0].plot([1])\naxes[1].bar([1], [2])\n"
        "figure.suptitle('Both')",
    )
    assert (both["type"], both["title"]) == ("superchart", "Both")
    assert [element["type"] for element in both["elements"]] == ["line", "bar"]
    assert chart(interpreter, "plt.figure().add_subplot().imshow([[1]])")["type"] == "unknown"


def test_a_table_has_its_columns_as_data(interpreter: Interpreter) -> None:
    code = (
        "import pandas\npandas.DataFrame({'n': [1, None], 'when': pandas.to_datetime("
        "['2026-01-01', '2026-01-02'])})"
    )
    [table] = interpreter.run(code).shown
    data = json.loads(table[TABLE])
    assert data["n"] == [1, None]
    assert data["when"][0].startswith("2026-01-01T")
    assert b"<table" in table["text/html"]
    [large] = interpreter.run("pandas.DataFrame({'n': range(300_000)})").shown
    assert TABLE not in large
