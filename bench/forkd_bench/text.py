"""Figures, paragraphs and tables as documents have them. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

LINE_MAX = 118


def shown(value: float) -> str:
    """A figure with three digits that count, as people read it."""
    if value >= 1000:
        return f"{value:,.0f}"
    digits = 0 if value >= 100 else 1 if value >= 10 else 4 if 0 < value < 0.01 else 2
    return f"{value:.{digits}f}"


def prose(text: str, bullet: str = "") -> str:
    """A paragraph, or an item of a list, in lines as documents have them."""
    return textwrap.fill(
        " ".join(text.split()),
        LINE_MAX,
        initial_indent=bullet,
        subsequent_indent=" " * len(bullet),
        break_long_words=False,
        break_on_hyphens=False,
    )


def rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [list(head), ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
