"""Runs the Python blocks of a page."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from player import has

ROOT = Path(__file__).resolve().parents[3]

# Pages whose Python blocks are run, in order, each page in one namespace.
PAGES = ("README.md", "docs/guides/python.md", "sdk/python/README.md")

# These have tests of their own.
ELSEWHERE = {"docs/guides/published-client.md"}

NEEDS = re.compile(r"<!-- needs (.+?) -->")


@dataclass(frozen=True)
class Block:
    """A piece of Python in a page."""

    page: str
    line: int
    """Of its first line of code, from 1."""
    code: str
    needs: str | None
    """A route or field that it cannot do without."""

    @property
    def expected(self) -> list[str]:
        """The lines that it prints, from its comments `# -> text`; none if it does not say."""
        return re.findall(r"# -> (.*)$", self.code, re.MULTILINE)

    def compiled(self) -> CodeType:
        """The code, with the page's line numbers; `await` may stand outside of functions."""
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(self.code, self.page, "exec", flags | ast.PyCF_ONLY_AST)
        ast.increment_lineno(tree, self.line - 1)
        code: CodeType = compile(tree, self.page, "exec", flags)
        return code


def blocks(page: str) -> list[Block]:
    """The Python blocks of a page."""
    found: list[Block] = []
    lines = (ROOT / page).read_text().splitlines()
    start: int | None = None
    needs: str | None = None
    for number, line in enumerate(lines, 1):
        if start is not None:
            if line.startswith("```"):
                code = "\n".join(lines[start - 1 : number - 1])
                found.append(Block(page, start, code, needs))
                start, needs = None, None
        elif line.startswith("```python"):
            start = number + 1
        elif match := NEEDS.fullmatch(line.strip()):
            needs = match[1]
    return found


def run_page(page: str, interface: dict[str, Any]) -> list[Block]:
    """Runs a page's blocks; those that the daemon cannot do are given back."""
    left: list[Block] = []
    namespace: dict[str, Any] = {"__name__": "__page__"}
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        for block in blocks(page):
            if block.needs is not None and not has(interface, block.needs):
                left.append(block)
                continue
            run(block, namespace, loop)
    return left


def run(block: Block, namespace: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Runs a block and compares what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        outcome = eval(block.compiled(), namespace)
        if inspect.iscoroutine(outcome):
            loop.run_until_complete(outcome)
    if block.expected:
        where = f"{block.page}:{block.line}"
        assert printed.getvalue().splitlines() == block.expected, where
