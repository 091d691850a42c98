"""The search keeps the best, removes the rest, and leaves nothing after errors and interrupts."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import fake
import httpx
import pytest
from fake import FakeDaemon

from forkd_sdk import AsyncSandbox, Node, Sandbox, errors, explore, explore_async


class Tree(FakeDaemon):
    """A daemon whose sandboxes hold one number, and whose code is evaluated here."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Any] = {"sb-0": {"x": 1}}
        self.snapshots: dict[str, list[str]] = {}
        self.parents: dict[str, str] = {}
        self.numbers = itertools.count(1)
        """Of sandboxes: no two have the same name."""
        self.most = 0
        self.lock = threading.Lock()

    def _answer(self, request: httpx.Request) -> httpx.Response:
        with self.lock:
            self.requests.append(request)
            answer = self._act(request)
            self.most = max(self.most, len(self.values))
            return answer

    def _act(self, request: httpx.Request) -> httpx.Response:
        method, parts = request.method, request.url.path.split("/")[2:]
        body = json.loads(request.content or b"{}")
        if parts[0] == "snapshots" and method == "DELETE":
            if parts[1] not in self.snapshots:
                return fake.error("snapshot_not_found", 404)
            self.drop(parts[1])
            return httpx.Response(204)
        if parts[1] not in self.values:
            return fake.error("sandbox_not_found", 404)
        if method == "GET":
            return fake.ok(fake.sandbox(parts[1]))
        if method == "DELETE":
            del self.values[parts[1]]
            return httpx.Response(204)
        if parts[2] == "branch":
            return self.branch(parts[1], body)
        return self.evaluate(self.values[parts[1]], body["code"])

    def drop(self, tag: str) -> None:
        for child in self.snapshots.pop(tag):
            self.values.pop(child, None)
        for below in [t for t, parent in self.parents.items() if parent == tag]:
            if below in self.snapshots:
                self.drop(below)

    def branch(self, source: str, body: dict[str, Any]) -> httpx.Response:
        names = [f"sb-{next(self.numbers)}" for _ in range(body["n"])]
        for name in names:
            self.values[name] = dict(self.values[source])
        above = [tag for tag, children in self.snapshots.items() if source in children]
        self.parents[body["tag"]] = above[0] if above else ""
        self.snapshots[body["tag"]] = names
        children = [{"sandbox": fake.sandbox(name)} for name in names]
        return fake.ok(fake.snapshot(body["tag"]) | {"children": children}, 201)

    @staticmethod
    def evaluate(scope: dict[str, Any], code: str) -> httpx.Response:
        answer = {"stdout": "", "stderr": "", "exit_code": 0, "timed_out": False}
        answer |= {"state_lost": False}
        try:
            if re.search(r"[^-=]=[^=]", code):
                exec(code, scope)
                return fake.ok(answer)
            value = eval(code, scope)
            return fake.ok(answer | {"result": None if value is None else repr(value)})
        except Exception as error:  # noqa: BLE001
            return fake.ok(answer | {"error": f"Trace\n{error!r}", "exit_code": 1})

    @property
    def left(self) -> tuple[list[str], list[str]]:
        return sorted(self.values), sorted(self.snapshots)


NOTHING: tuple[list[str], list[str]] = (["sb-0"], [])


@pytest.fixture
def tree() -> Tree:
    return Tree()


@pytest.fixture
def root(tree: Tree) -> Iterator[Sandbox]:
    with tree.client() as client:
        yield Sandbox.connect("sb-0", client=client)


def test_the_best_path_is_found_and_only_the_best_stay(tree: Tree, root: Sandbox) -> None:
    variants = ["x += 1", "x *= 3"]
    with explore(root, variants, "-abs(x - 10)", keep=2, depth=3) as found:
        assert found.best is not None
        # 1, +1 = 2 or *3 = 3; of 3, 6, 4, 9 stay 9 and 6; of 10, 27, 7, 18 the best is 10.
        assert found.best.path == ("x *= 3", "x *= 3", "x += 1")
        assert (found.best.score, found.best.depth, found.tried) == (0.0, 3, 10)
        assert [node.score for node in found.nodes] == [0.0, -3.0]
        alive = {node.sandbox.id for node in found.nodes}
        assert set(tree.values) == {"sb-0"} | alive
    assert tree.left == NOTHING
    assert tree.values["sb-0"]["x"] == 1, "the source is not changed"


@pytest.mark.anyio
async def test_the_asynchronous_search_finds_the_same(tree: Tree) -> None:
    async def triple(sandbox: AsyncSandbox) -> str:
        await sandbox.run_code("x *= 3")
        return "tripled"

    async def score(sandbox: AsyncSandbox) -> float:
        return -abs(float((await sandbox.run_code("x")).result or 0) - 10)

    async with tree.async_client() as client:
        root = await AsyncSandbox.connect("sb-0", client=client)
        search = await explore_async(root, ["x += 1", triple], score, keep=2, depth=3)
        async with search as found:
            assert found.best is not None
            assert found.best.path == (triple, triple, "x += 1")
            assert found.nodes[1].value == "tripled" or found.nodes[1].score == -3.0
    assert tree.left == NOTHING


def test_it_stops_when_it_is_good_enough(tree: Tree, root: Sandbox) -> None:
    with explore(root, ["x += 1"], "x", depth=50, enough=4) as found:
        assert found.best is not None
        assert (found.best.depth, found.best.score) == (3, 4.0)


def test_what_can_be_tried_may_depend_on_the_state(tree: Tree, root: Sandbox) -> None:
    def moves(node: Node[Sandbox]) -> list[str]:
        return [] if node.depth == 2 else [f"x += {node.depth + 1}"]

    with explore(root, moves, "x", depth=9) as found:
        assert found.best is not None
        assert found.best.path == ("x += 1", "x += 2")


def test_dead_ends_are_noted_and_removed(tree: Tree, root: Sandbox) -> None:
    with explore(root, ["x = 1 / 0", "x = None", "x = 'a'", "x += 1"], "x", depth=1) as found:
        assert [node.score for node in found.nodes] == [2.0]
        failures = {failure.path: str(failure.error) for failure in found.failures}
        assert "ZeroDivisionError" in failures.pop(("x = 1 / 0",))
        assert "no number" in failures.pop(("x = 'a'",))
        assert failures == {}, "None is a dead end and no failure"
    with explore(root, ["x = 1 / 0"], "x", depth=3) as found:
        assert (found.best, found.nodes) == (None, [])
    assert tree.left == NOTHING


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_error_or_interrupt_leaves_nothing(
    tree: Tree, root: Sandbox, depth: int, kind: type[BaseException]
) -> None:
    def score(sandbox: Sandbox) -> float:
        value = float(sandbox.run_code("x").result or 0)
        if value == depth + 1:
            raise kind("stop")
        return value

    with pytest.raises(kind):
        explore(root, ["x += 1", "x += 0"], score, keep=2, depth=3)
    assert tree.left == NOTHING


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.anyio
async def test_an_asynchronous_error_leaves_nothing(tree: Tree, depth: int) -> None:
    async def score(sandbox: AsyncSandbox) -> float:
        value = float((await sandbox.run_code("x")).result or 0)
        if value == depth + 1:
            raise RuntimeError("stop")
        return value

    async with tree.async_client() as client:
        root = await AsyncSandbox.connect("sb-0", client=client)
        with pytest.raises(RuntimeError, match="stop"):
            await explore_async(root, ["x += 1", "x += 0"], score, keep=2, depth=3)
    assert tree.left == NOTHING


@pytest.mark.anyio
async def test_a_cancelled_search_leaves_nothing(tree: Tree) -> None:
    started = anyio.Event()

    async def score(_: AsyncSandbox) -> float:
        started.set()
        await anyio.sleep_forever()
        return 0.0

    async with tree.async_client() as client:
        root = await AsyncSandbox.connect("sb-0", client=client)
        async with anyio.create_task_group() as group:
            group.start_soon(explore_async, root, ["x += 1"], score)
            await started.wait()
            assert len(tree.values) == 2
            group.cancel_scope.cancel()
    assert tree.left == NOTHING


def test_an_interrupt_while_the_branch_is_under_way_leaves_nothing(
    tree: Tree, root: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread is interrupted before the request has even reached the daemon."""
    arrived, interrupted = threading.Event(), threading.Event()

    answer = tree._answer

    def delayed(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/branch"):
            arrived.set()
            assert interrupted.wait(10)
        return answer(request)

    monkeypatch.setattr(tree, "_answer", delayed)
    from concurrent.futures import Future

    result = Future.result

    def interrupt(self: Future[Any], timeout: float | None = None) -> Any:
        if not interrupted.is_set():
            assert arrived.wait(10)
            threading.Timer(0.1, interrupted.set).start()
            raise KeyboardInterrupt
        return result(self, timeout)

    monkeypatch.setattr(Future, "result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        explore(root, ["x += 1"], "x")
    assert any(asked.endswith("/branch") for asked in tree.asked), "it was branched after all"
    assert tree.left == NOTHING


def test_a_search_that_makes_no_sense_is_refused(root: Sandbox) -> None:
    for wrong in ({"keep": 0}, {"depth": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            explore(root, ["x += 1"], "x", **wrong)  # type: ignore[arg-type]


def test_a_child_that_could_not_be_started_is_a_dead_end(
    tree: Tree, root: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = tree.branch

    def partly(source: str, body: dict[str, Any]) -> httpx.Response:
        answer = json.loads(branch(source, body).content)
        answer["children"][0] = {"error": {"error": "full", "code": "no_space", "hint": ""}}
        return fake.ok(answer, 201)

    monkeypatch.setattr(tree, "branch", partly)
    with explore(root, ["x += 1", "x += 2"], "x") as found:
        assert found.best is not None
        assert found.best.path == ("x += 2",)
        assert isinstance(found.failures[0].error, errors.NoSpaceError)
