"""`explore`: a search that branches sandboxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from .._core import flow
from .._core.search import DEAD_ENDS, Failure, Node, Plan, number, number_of
from .sandbox import Child, Mode, Sandbox
from .transport import Transport

Variant = str | Callable[[Sandbox], Any]
Score = str | Callable[[Sandbox], float | None]


class Exploration:
    """What a search found. As a context manager it removes all that is left at the end."""

    def __init__(self, transport: Transport, plan: Plan[Sandbox]) -> None:
        self._transport, self._plan = transport, plan
        self.nodes: list[Node[Sandbox]] = []
        """The states that were kept last, best first. Their sandboxes run."""

    @property
    def best(self) -> Node[Sandbox] | None:
        """The best of them; None if every variant was a dead end."""
        return self.nodes[0] if self.nodes else None

    @property
    def failures(self) -> list[Failure]:
        """The variants that did not work out."""
        return self._plan.failures

    @property
    def tried(self) -> int:
        """How many variants were tried."""
        return self._plan.tried

    def close(self) -> None:
        """Removes all sandboxes and snapshots of the search."""
        try:
            while self._plan.tags:
                self._transport.run(flow.remove_all_of(self._plan.tags[0]))
                del self._plan.tags[0]
        finally:
            for node in self.nodes:
                node.sandbox.close()

    def __enter__(self) -> Exploration:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def explore(
    sandbox: Sandbox,
    variants: Sequence[Variant] | Callable[[Node[Sandbox]], Sequence[Variant]],
    score: Score,
    *,
    keep: int = 1,
    depth: int = 1,
    enough: float | None = None,
    mode: Mode | None = None,
    parallel: int = 8,
) -> Exploration:
    """Tries variants in children of a sandbox, keeps the best `keep`, and goes on from these.

    `variants` are functions that get a child, or Python code that it runs; or a function from a
    state to these. `score` is a function that gets the child afterwards, or a Python expression:
    more is better, None is a dead end, as is a variant that raises a `CodeError`,
    `CommandFailedError` or `ApiError`. It ends after `depth` levels, or when a score is at least
    `enough`.

    The sandbox itself is not changed. What is not kept is removed at once, what is kept with the
    result; after an error or an interrupt nothing is left. `parallel` children work at a time, each
    in a thread.
    """
    plan = Plan(variants, keep, depth, enough)
    found = Exploration(sandbox._transport, plan)
    pool = ThreadPoolExecutor(max(1, parallel), thread_name_prefix="explore")
    try:
        frontier = [Node(sandbox)]
        for _ in range(depth):
            kept = _level(pool, plan, frontier, score, mode)
            if not kept:
                break
            _remove(pool, [node for node in frontier if node.depth > 0])
            found.nodes = frontier = kept
            if plan.is_enough(kept[0]):
                break
    except BaseException:
        # What the threads work on disappears, so they end; what they still made goes then.
        tags = list(plan.tags)
        try:
            found.close()
        finally:
            pool.shutdown(cancel_futures=True)
            plan.tags = tags
            found.close()
        raise
    pool.shutdown()
    return found


def _level(
    pool: ThreadPoolExecutor,
    plan: Plan[Sandbox],
    frontier: list[Node[Sandbox]],
    score: Score,
    mode: Mode | None,
) -> list[Node[Sandbox]]:
    """Tries every variant of every state, and removes what is not kept."""
    branches = []
    for node in frontier:
        choices = list(plan.choices(node))
        if choices:
            branches.append((node, choices, plan.new_tag()))
    taken = [
        (node, choices, pool.submit(node.sandbox.branch, len(choices), mode=mode, tag=tag))
        for node, choices, tag in branches
    ]
    trials: list[tuple[Child, Future[Node[Sandbox] | None]]] = []
    for node, choices, branch in taken:
        for child, choice in zip(branch.result().children, choices, strict=True):
            trials.append((child, pool.submit(_try, plan, node, child, choice, score)))
    plan.tried += len(trials)
    outcomes = [(child, trial.result()) for child, trial in trials]
    kept = plan.select([node for _, node in outcomes if node is not None])
    alive = {node.sandbox.id for node in kept}
    _remove(
        pool,
        [
            Node(child.sandbox)
            for child, _ in outcomes
            if child.sandbox is not None and child.sandbox.id not in alive
        ],
    )
    return kept


def _try(
    plan: Plan[Sandbox], parent: Node[Sandbox], child: Child, choice: Variant, score: Score
) -> Node[Sandbox] | None:
    """What a variant gives in a child; None for a dead end."""
    path = (*parent.path, choice)
    try:
        sandbox = child.unwrap()
        if isinstance(choice, str):
            value: Any = sandbox.run_code(choice).raise_for_error().text
        else:
            value = choice(sandbox)
        if isinstance(score, str):
            points = number_of(sandbox.run_code(score))
        else:
            points = number(score(sandbox))
    except DEAD_ENDS as error:
        plan.failed(path, error)
        return None
    if points is None:
        return None
    return Node(sandbox, parent.depth + 1, path, points, value)


def _remove(pool: ThreadPoolExecutor, nodes: list[Node[Sandbox]]) -> None:
    for removal in [pool.submit(node.sandbox.remove) for node in nodes]:
        removal.result()
