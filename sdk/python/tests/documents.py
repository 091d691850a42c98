"""The code blocks of the pages, and running those in Python and for a shell.

A page's blocks of one language are run in order, in one namespace or one shell. What they print is
compared with what the page shows. A block that cannot be run says why, on the line before it:
`<!-- not run: the reason -->`. Those in TypeScript are run by its SDK's tests.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parents[3]

# These pages have tests of their own, each in this file.
ELSEWHERE = {
    "docs/guides/coming-from-e2b.md": "tests/cli/e2b_programs_run_unchanged.rs",
    "docs/guides/published-client.md": "tests/cli/published_client_works_unchanged.rs",
}

# What is no program: it is shown, not run.
DATA = {"json", "text"}

# What a shell block that is run must not do to the machine that runs it.
HARMFUL = re.compile(
    r"\b(apt|apt-get|make|mount|systemctl|sudo)\b|(^|[\s'\"=>])/(boot|etc|usr|var)\b"
)

NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
SHELL_SECS_MAX = 300


@dataclass(frozen=True)
class Block:
    """A piece of code in a page."""

    page: str
    line: int
    """Of its first line of code, from 1."""
    language: str
    code: str
    not_run: str | None
    """Why it cannot be run."""

    @property
    def where(self) -> str:
        """For people."""
        return f"{self.page}:{self.line}"

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


def all_pages() -> list[str]:
    """The README, the guides, and what the SDKs say of themselves."""
    places = [ROOT / "README.md", *ROOT.glob("docs/guides/*.md"), *ROOT.glob("sdk/*/README.md")]
    return sorted(str(place.relative_to(ROOT)) for place in places)


def pages(language: str) -> list[str]:
    """Those with blocks of this language that are run here."""
    return [page for page in all_pages() if page not in ELSEWHERE and blocks(page, language)]


def blocks(page: str, language: str | None = None) -> list[Block]:
    """The blocks of a page, or those of one language that are run."""
    found: list[Block] = []
    lines = (ROOT / page).read_text().splitlines()
    start: int | None = None
    not_run: str | None = None
    for number, line in enumerate(lines, 1):
        if start is not None:
            if line.startswith("```"):
                code = "\n".join(lines[start - 1 : number - 1])
                found.append(Block(page, start, lines[start - 2][3:].strip(), code, not_run))
                start, not_run = None, None
        elif line.startswith("```"):
            start = number + 1
        elif match := NOT_RUN.fullmatch(line.strip()):
            not_run = match[1]
        elif line.strip():
            not_run = None
    if language is None:
        return found
    return [block for block in found if block.language == language and block.not_run is None]


def run_python(page: str) -> None:
    """Runs a page's blocks in Python."""
    namespace: dict[str, Any] = {"__name__": "__page__"}
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        for block in blocks(page, "python"):
            run_block(block, namespace, loop)


def run_block(block: Block, namespace: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Runs a block and compares what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        outcome = eval(block.compiled(), namespace)
        if inspect.iscoroutine(outcome):
            loop.run_until_complete(outcome)
    if block.expected:
        assert printed.getvalue().splitlines() == block.expected, block.where


def script(page: str) -> str:
    """A page's shell blocks as one script, which says where each begins."""
    parts = ["set -euo pipefail"]
    for block in blocks(page, "sh"):
        harm = HARMFUL.search(block.code)
        assert harm is None, f"{block.where}: `{harm and harm[0]}` is not for the host"
        parts += [f"echo '{mark(block)}'", f"echo '{mark(block)}' >&2", block.code]
    return "\n".join([*parts, ""])


def mark(block: Block) -> str:
    """Begins the output of a block."""
    return f"=== block at line {block.line}"


def run_shell(page: str, place: Path, forkd: Path, url: str) -> None:
    """Runs a page's shell blocks in an empty folder, with `forkd` and the daemon at `url`."""
    environment = {name: value for name, value in os.environ.items() if name != "FORKD_URL"}
    environment["FORKD_SOCKET"] = url.removeprefix("unix:")
    environment["PATH"] = f"{forkd.parent}:{environment['PATH']}"
    ran = subprocess.run(
        ["/bin/bash", "-c", script(page)],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SHELL_SECS_MAX,
        check=False,
    )
    assert ran.returncode == 0, f"{page}: exit code {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    compare(page, ran.stdout)


def compare(page: str, printed: str) -> None:
    """Whether what the page shows was printed, in this order; not all that is printed is shown."""
    for block in blocks(page, "sh"):
        _, _, rest = printed.partition(mark(block) + "\n")
        lines = rest.partition("=== block at line ")[0].splitlines()
        left = iter(lines)
        for shown in block.expected:
            found = any(matches(shown, line) for line in left)
            assert found, f"{block.where}: `{shown}` is not printed there, but:\n" + "\n".join(
                lines
            )


def matches(shown: str, line: str) -> bool:
    """Whether a line is the one that is shown; `...` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("..."))
    return re.fullmatch(pattern, line.strip()) is not None
