"""`explore_async`: a search that branches sandboxes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import anyio

from .._core import flow
from .._core.search import DEAD_ENDS, Failure, Node, Plan, number, number_of
from .sandbox import AsyncBranch, AsyncChild, AsyncSandbox, Mode
from .transport import AsyncTransport

T = TypeVar("T")
R = TypeVar("R")

AsyncVariant = str | Callable[[AsyncSandbox], Any | Awaitable[Any]]
AsyncScore = str | Callable[[AsyncSandbox], float | Awaitable[float | None] | None]


class AsyncExploration:
    """What a search found. As a context manager it removes all that is left at the end."""

    def __init__(self, transport: AsyncTransport, plan: Plan[AsyncSandbox]) -> None:
        self._transport, self._plan = transport, plan
        self.nodes: list[Node[AsyncSandbox]] = []
        """The states that were kept last, best first. Their sandboxes run."""

    @property
    def best(self) -> Node[AsyncSandbox] | None:
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

    async def close(self) -> None:
        """Removes all sandboxes and snapshots of the search."""
        with anyio.CancelScope(shield=True):
            try:
                while self._plan.tags:
                    await self._transport.run(flow.remove_all_of(self._plan.tags[0]))
                    del self._plan.tags[0]
            finally:
                for node in self.nodes:
                    await node.sandbox.close()

    async def __aenter__(self) -> AsyncExploration:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def explore_async(
    sandbox: AsyncSandbox,
    variants: Sequence[AsyncVariant] | Callable[[Node[AsyncSandbox]], Sequence[AsyncVariant]],
    score: AsyncScore,
    *,
    keep: int = 1,
    depth: int = 1,
    enough: float | None = None,
    mode: Mode | None = None,
    parallel: int = 8,
) -> AsyncExploration:
    """Tries variants in children of a sandbox, keeps the best `keep`, and goes on from these.

    `variants` are functions that get a child, or Python code that it runs; or a function from a
    state to these. `score` is a function that gets the child afterwards, or a Python expression:
    more is better, None is a dead end, as is a variant that raises a `CodeError`,
    `CommandFailedError` or `ApiError`. It ends after `depth` levels, or when a score is at least
    `enough`.

    The sandbox itself is not changed. What is not kept is removed at once, what is kept with the
    result; after an error or a cancellation nothing is left. `parallel` children work at a time,
    each in a task.
    """
    plan = Plan(variants, keep, depth, enough)
    found = AsyncExploration(sandbox._transport, plan)
    limiter = anyio.CapacityLimiter(max(1, parallel))
    try:
        frontier = [Node(sandbox)]
        for _ in range(depth):
            kept = await _level(limiter, plan, frontier, score, mode)
            if not kept:
                break
            await _remove(limiter, [node.sandbox for node in frontier if node.depth > 0])
            found.nodes = frontier = kept
            if plan.is_enough(kept[0]):
                break
    except BaseException:
        await found.close()
        raise
    return found


async def _level(
    limiter: anyio.CapacityLimiter,
    plan: Plan[AsyncSandbox],
    frontier: list[Node[AsyncSandbox]],
    score: AsyncScore,
    mode: Mode | None,
) -> list[Node[AsyncSandbox]]:
    """Tries every variant of every state, and removes what is not kept."""
    branches = await _branches(plan, frontier, mode)
    trials = [
        (node, child, choice)
        for node, choices, branch in branches
        for child, choice in zip(branch.children, choices, strict=True)
    ]

    async def attempt(
        trial: tuple[Node[AsyncSandbox], AsyncChild, AsyncVariant],
    ) -> Node[AsyncSandbox] | None:
        async with limiter:
            return await _try(plan, *trial, score)

    plan.tried += len(trials)
    kept = plan.select([node for node in await _each(attempt, trials) if node is not None])
    alive = {node.sandbox.id for node in kept}
    unwanted = [child.sandbox for _, child, _ in trials if child.sandbox is not None]
    await _remove(limiter, [sandbox for sandbox in unwanted if sandbox.id not in alive])
    return kept


async def _branches(
    plan: Plan[AsyncSandbox], frontier: list[Node[AsyncSandbox]], mode: Mode | None
) -> list[tuple[Node[AsyncSandbox], list[AsyncVariant], AsyncBranch]]:
    """A branch of every state, with a child for each of its variants."""
    wanted = [(node, list(plan.choices(node))) for node in frontier]

    async def take(
        state: tuple[Node[AsyncSandbox], list[AsyncVariant]],
    ) -> tuple[Node[AsyncSandbox], list[AsyncVariant], AsyncBranch]:
        node, choices = state
        # A request that is broken off may be carried out after its snapshot was looked for.
        with anyio.CancelScope(shield=True):
            tag = plan.new_tag()
            branch = await node.sandbox.branch(len(choices), mode=mode, tag=tag)
        return node, choices, branch

    return await _each(take, [(node, choices) for node, choices in wanted if choices])


async def _try(
    plan: Plan[AsyncSandbox],
    parent: Node[AsyncSandbox],
    child: AsyncChild,
    choice: AsyncVariant,
    score: AsyncScore,
) -> Node[AsyncSandbox] | None:
    """What a variant gives in a child; None for a dead end."""
    path = (*parent.path, choice)
    try:
        sandbox = child.unwrap()
        if isinstance(choice, str):
            value: Any = (await sandbox.run_code(choice)).raise_for_error().text
        else:
            value = choice(sandbox)
            if isinstance(value, Awaitable):
                value = await value
        if isinstance(score, str):
            points = number_of(await sandbox.run_code(score))
        else:
            given = score(sandbox)
            points = number(await given if isinstance(given, Awaitable) else given)
    except DEAD_ENDS as error:
        plan.failed(path, error)
        return None
    if points is None:
        return None
    return Node(sandbox, parent.depth + 1, path, points, value)


async def _remove(limiter: anyio.CapacityLimiter, sandboxes: list[AsyncSandbox]) -> None:
    async def remove(sandbox: AsyncSandbox) -> None:
        async with limiter:
            await sandbox.remove()

    await _each(remove, sandboxes)


async def _each(work: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Does the work for all items at the same time. The first error ends it, and is raised as it
    is.
    """
    results: dict[int, R] = {}
    errors: list[Exception] = []

    async def one(index: int, item: T) -> None:
        try:
            results[index] = await work(item)
        except Exception as error:  # noqa: BLE001 - it is raised below
            errors.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for index, item in enumerate(items):
            group.start_soon(one, index, item)
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(items))]
