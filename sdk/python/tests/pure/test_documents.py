"""The code blocks of the documents are found, and none is left out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from pathlib import Path

import documents
import pytest
from documents import Block

LANGUAGES = {"python", "sh", "ts"}


@pytest.mark.parametrize("page", documents.all_pages())
def test_every_block_is_run_or_says_why_not(page: str) -> None:
    for block in documents.blocks(page):
        assert block.language in LANGUAGES | documents.DATA, f"{block.where}: {block.language}"
        assert block.not_run is None or block.language not in documents.DATA, block.where
        if block.language == "json":
            json.loads(block.code)


def test_few_blocks_are_not_run() -> None:
    left = [
        block.where
        for page in documents.all_pages()
        for block in documents.blocks(page)
        if block.not_run is not None
    ]
    assert len(left) <= 12, left


@pytest.mark.parametrize(
    "code", ["systemctl restart x", "cp a /etc/a", "cd x; sudo ls", "echo >/usr/x", 'a="/var/b"']
)
def test_shell_blocks_that_would_change_the_host_are_not_run(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.md").write_text(f"# P\n\n```sh\n{code}\n```\n")
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    with pytest.raises(AssertionError, match="not for the host"):
        documents.run_shell("p.md", tmp_path, tmp_path / "forkd", "unix:/s")


@pytest.mark.parametrize("page", documents.pages("python"))
def test_python_blocks_compile(page: str) -> None:
    for block in documents.blocks(page, "python"):
        block.compiled()


@pytest.mark.parametrize("page", documents.pages("sh"))
def test_shell_blocks_are_shell(page: str) -> None:
    subprocess.run(["/bin/bash", "-n", "-c", documents.script(page)], check=True)


def test_pages_that_are_run_elsewhere_are_named_there() -> None:
    for page, test in documents.ELSEWHERE.items():
        assert page in (documents.ROOT / test).read_text()


def test_the_readme_shows_three_languages() -> None:
    for language in LANGUAGES:
        assert documents.blocks("README.md", language), language


PAGE = """# P

```python
x = 1
```
<!-- not run: it is a joke -->

```sh
rm -rf /
```

```python
print(x)  # -> 2
```

```sh
echo one; echo sb-12
# -> sb-...
```
"""


def test_what_a_block_prints_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.md").write_text(PAGE)
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    first, joke, second, last = documents.blocks("p.md")
    assert (first.line, first.language, first.not_run) == (4, "python", None)
    assert (joke.language, joke.not_run) == ("sh", "it is a joke")
    assert (second.line, second.expected) == (13, ["2"])
    with pytest.raises(AssertionError, match=r"p\.md:13"):
        documents.run_python("p.md")
    assert documents.blocks("p.md", "sh") == [last]
    documents.run_shell("p.md", tmp_path, tmp_path / "forkd", "unix:/s")
    documents.compare("p.md", f"{documents.mark(last)}\none\nsb-12\ntwo\n")
    for wrong in ("", "one\n", "sb-12"):
        with pytest.raises(AssertionError, match=r"p\.md:17"):
            documents.compare("p.md", wrong)


def test_a_shell_block_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.md").write_text("# P\n\n```sh\nfalse | true\necho on\n```\n")
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    with pytest.raises(AssertionError, match="exit code 1"):
        documents.run_shell("p.md", tmp_path, tmp_path / "forkd", "unix:/s")


def test_dots_stand_for_anything_and_nothing_else_does() -> None:
    assert documents.matches('{"id":"...","a":1}', '{"id":"x","a":1}')
    assert not documents.matches("a.b", "axb")
    assert not documents.matches("sb-...", "no sb-1")


def test_an_error_names_the_line_of_the_page() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        exec(Block("p", 40, "python", "x = 0\n1 / x", None).compiled(), {})
    assert raised.traceback[-1].lineno == 40, "counted from 0"


def test_a_block_may_await() -> None:
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        code = "import asyncio\nawait asyncio.sleep(0)\nprint('ok')  # -> ok"
        documents.run_block(Block("p", 1, "python", code, None), {}, loop)
