"""The Python blocks of the documents are Python, and are found."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import documents
import pytest
from documents import Block

PAGES = [page for page in documents.PAGES if documents.blocks(page)]


@pytest.mark.parametrize("page", documents.PAGES)
def test_every_page_has_blocks_and_they_compile(page: str) -> None:
    assert documents.blocks(page)
    for block in documents.blocks(page):
        block.compiled()


def test_no_page_with_python_is_left_out() -> None:
    root = documents.ROOT
    places = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "sdk").rglob("*.md")]
    pages = {str(path.relative_to(root)) for path in places if "node_modules" not in path.parts}
    with_blocks = {page for page in pages - documents.ELSEWHERE if documents.blocks(page)}
    assert with_blocks == set(documents.PAGES)


def test_what_a_block_prints_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "# P\n\n```python\nx = 1\n```\n<!-- needs GET /y -->\n```python\nprint(x)  # -> 2\n```\n"
    (tmp_path / "p.md").write_text(page)
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    first, second = documents.blocks("p.md")
    assert (first.line, first.needs) == (4, None)
    assert (second.line, second.needs, second.expected) == (8, "GET /y", ["2"])
    with pytest.raises(AssertionError, match=r"p\.md:8"):
        documents.run_page("p.md", {"paths": {"/y": {"get": {}}}})
    assert documents.run_page("p.md", {"paths": {}}) == [second]


def test_an_error_names_the_line_of_the_page() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        exec(Block("p", 40, "x = 0\n1 / x", None).compiled(), {})
    assert raised.traceback[-1].lineno == 40, "counted from 0"


def test_a_block_may_await() -> None:
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        code = "import asyncio\nawait asyncio.sleep(0)\nprint('ok')  # -> ok"
        documents.run(Block("p", 1, code, None), {}, loop)
