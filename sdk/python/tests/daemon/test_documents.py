"""Every Python block of the documents does what it says, with real guests."""

from __future__ import annotations

from typing import Any

import documents
import pytest

from forkd_sdk import Client


@pytest.mark.parametrize("page", documents.PAGES)
def test_page(page: str, interface: dict[str, Any], client: Client) -> None:
    left = documents.run_page(page, interface)
    if left:
        lines = ", ".join(f"{block.line} ({block.needs})" for block in left)
        pytest.skip(f"the daemon cannot run the blocks at {lines}; the others are well")
