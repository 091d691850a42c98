"""Generated parts of documents, between `<!-- generated: NAME -->` and `<!-- end: NAME -->`.

Guarantees: everything outside of the marks stays as it is. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping


class MarksError(Exception):
    """A document's marks do not fit what is generated."""


def replaced(document: str, blocks: Mapping[str, str]) -> str:
    """The document with each block in its place."""
    marked = re.findall(r"^<!-- generated: (\S+) -->$", document, re.MULTILINE)
    if sorted(marked) != sorted(blocks):
        raise MarksError(f"the document has marks for {marked}, and there is {sorted(blocks)}")
    for name, block in blocks.items():
        begin, end = f"<!-- generated: {name} -->\n", f"<!-- end: {name} -->\n"
        before, _, rest = document.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise MarksError(f"`{begin.strip()}` has no `{end.strip()}`")
        document = f"{before}{begin}{block.strip()}\n{end}{after}"
    return document
