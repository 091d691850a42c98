"""A search by branching: what is tried, what is kept. No I/O."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .failure import ApiError, ForkdError
from .result import CodeError, CommandFailedError, Execution

S = TypeVar("S")

# A child in which one of these was raised is a dead end; others end the search.
DEAD_ENDS = (ApiError, CodeError, CommandFailedError)


@dataclass(frozen=True)
class Node(Generic[S]):
    """A state of the search."""

    sandbox: S
    """The sandbox that is in this state."""
    depth: int = 0
    """How many variants led here."""
    path: tuple[Any, ...] = ()
    """The variants that led here."""
    score: float = -math.inf
    """How good it is."""
    value: Any = None
    """What the last variant gave: the function's return value, or the code's result."""


@dataclass(frozen=True)
class Failure:
    """A variant that did not work out."""

    path: tuple[Any, ...]
    """The variants that led there, itself last."""
    error: ForkdError


@dataclass
class Plan(Generic[S]):
    """What is to be tried, and what was found."""

    variants: Sequence[Any] | Callable[[Node[S]], Sequence[Any]]
    keep: int
    depth: int
    enough: float | None
    tags: list[str] = field(default_factory=list)
    """Of all snapshots that were taken, or were about to be."""
    failures: list[Failure] = field(default_factory=list)
    tried: int = 0

    def __post_init__(self) -> None:
        if self.keep < 1 or self.depth < 1:
            raise ValueError("`keep` and `depth` must be at least 1")

    def choices(self, node: Node[S]) -> Sequence[Any]:
        """What to try from a state."""
        return self.variants(node) if callable(self.variants) else self.variants

    def new_tag(self) -> str:
        """A tag for the next branch; known before it is taken, so that it can be removed."""
        self.tags.append(f"explore-{secrets.token_hex(8)}")
        return self.tags[-1]

    def failed(self, path: tuple[Any, ...], error: ForkdError) -> None:
        """Notes a dead end."""
        self.failures.append(Failure(path, error))

    def select(self, grown: list[Node[S]]) -> list[Node[S]]:
        """The best, best first; of equals the one that was tried first."""
        return sorted(grown, key=lambda node: -node.score)[: self.keep]

    def is_enough(self, best: Node[S]) -> bool:
        """Whether to stop here."""
        return self.enough is not None and best.score >= self.enough


def number(value: float | None) -> float | None:
    """A score; None for a dead end."""
    if value is None or math.isnan(value):
        return None
    return float(value)


def number_of(execution: Execution) -> float | None:
    """The score that Python code gave; None for a dead end."""
    text = execution.raise_for_error().result
    if text is None:
        return None
    try:
        return number(float(text))
    except ValueError:
        raise CodeError(f"the score is no number but {text:.80}", execution) from None
