"""Every Python and shell block of the documents does what it says, with real guests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import documents
import pytest

from forkd_sdk import Client


@pytest.mark.parametrize("page", documents.pages("python"))
def test_python_page(page: str, client: Client) -> None:
    documents.run_python(page)


@pytest.fixture
def tidy(client: Client) -> Iterator[None]:
    """What a page leaves in the daemon goes: a shell has no `with`."""
    snapshots = {snapshot.tag for snapshot in client.snapshots.list()}
    yield
    for sandbox in client.sandboxes.list():
        sandbox.remove()
    for tag in reversed([snapshot.tag for snapshot in client.snapshots.list()]):
        if tag not in snapshots:
            client.snapshots.remove(tag)


@pytest.mark.parametrize("page", documents.pages("sh"))
def test_shell_page(page: str, url: str, tidy: None, tmp_path: Path) -> None:
    from with_daemon import program

    documents.run_shell(page, tmp_path, Path(program()), url)
