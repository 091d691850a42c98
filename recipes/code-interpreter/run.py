"""Runs a notebook cell by cell; a cell that fails changes nothing: see README.md.

Needs the Python SDK and a daemon. The last line of standard output is `FORKD_CODE_INTERPRETER` and
the figures as JSON.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from forkd_sdk import Branch, Client, Execution, ForkdError, Sandbox

HERE = Path(__file__).resolve().parent
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Cell:
    """A piece of a notebook and what became of it."""

    code: str
    execution: Execution


class Interpreter:
    """A Python session in which a cell that fails changes nothing.

    Each cell runs in a child of the session's sandbox. If it works, the child is the session from
    then on; else the child is removed, with all that the cell has done to variables, files and
    processes until it failed.
    """

    def __init__(self, client: Client) -> None:
        self._origin = Sandbox.create("python", client=client)
        self._now = self._origin
        self._branches: list[Branch] = []
        self.undone = 0

    def run(self, code: str) -> Execution:
        """Runs a cell."""
        branch = self._now.branch(1)
        self._branches.append(branch)
        [child] = branch.unwrap()
        execution = child.run_code(code)
        if execution.ok:
            if self._now is not self._origin:
                self._now.remove()
            self._now = child
        else:
            self._branches.pop().remove()
            self.undone += 1
        return execution

    def close(self) -> None:
        """Removes the session and all that its cells have made."""
        for branch in self._branches:
            branch.remove()
        self._origin.remove()


def cells(notebook: str) -> list[str]:
    """The cells of a script in which lines with `# %%` divide them."""
    pieces = re.split(r"^# %%.*$", notebook, flags=re.MULTILINE)
    return [piece.strip() for piece in pieces if piece.strip()]


def shown(execution: Execution) -> str:
    """What a notebook would show, as HTML. The guest's own HTML goes into a frame of its own."""
    pieces = []
    if execution.stdout:
        pieces.append(f"<pre>{html.escape(execution.stdout)}</pre>")
    rich = execution.svg or execution.html
    if rich is not None:
        # It comes from the sandbox: it may draw, and do nothing else.
        pieces.append(f'<iframe sandbox srcdoc="{html.escape(rich)}"></iframe>')
    elif execution.text is not None:
        pieces.append(f"<pre><b>{html.escape(execution.text)}</b></pre>")
    if execution.error is not None:
        pieces.append(f"<pre><i>undone: {html.escape(execution.error)}</i></pre>")
    return "\n".join(pieces)


def report(session: list[Cell]) -> str:
    """The whole session as a page."""
    rows = [
        f"<section><pre><code>{html.escape(cell.code)}</code></pre>\n{shown(cell.execution)}</section>"
        for cell in session
    ]
    style = "<style>iframe { border: 0; width: 100%; } code { color: navy }</style>"
    return "\n".join(
        ["<!doctype html><meta charset=utf-8><title>Session</title>", style, *rows, ""]
    )


def play(client: Client, notebook: str) -> tuple[list[Cell], int]:
    """All cells, one after the other, and how many were undone."""
    interpreter = Interpreter(client)
    session = []
    try:
        for number, code in enumerate(cells(notebook), 1):
            execution = interpreter.run(code)
            session.append(Cell(code, execution))
            forms = ", ".join(part.mime for part in execution.parts) or execution.text or "-"
            error = (execution.error or "").strip().rpartition("\n")[2]
            print(f"cell {number}: {f'undone, {error}' if error else forms}")
    finally:
        interpreter.close()
    return session, interpreter.undone


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a notebook in a sandbox.")
    parser.add_argument("notebook", nargs="?", type=Path, default=HERE / "session.py")
    parser.add_argument("--report", type=Path, help="write what the cells gave to this HTML file")
    options = parser.parse_args()
    try:
        with Client() as client:
            session, undone = play(client, options.notebook.read_text())
    except ForkdError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    if options.report is not None:
        options.report.write_text(report(session))
        print(f"wrote {options.report}")
    figures = {
        "cells": len(session),
        "undone": undone,
        "rich": sum(len(cell.execution.parts) > 1 for cell in session),
        "last": session[-1].execution.text if session else None,
    }
    print("FORKD_CODE_INTERPRETER " + json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
