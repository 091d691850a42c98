"""The recipes that use the SDK do what they say, and leave nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from forkd_sdk import Client

RECIPES = Path(__file__).resolve().parents[4] / "recipes"
# Against what hangs only. Two tests a processor and other programs beside them make a recipe take
# many times as long as it takes alone.
SECS_MAX = 1800
# Of what a recipe said that failed; its end says why.
LINES_SHOWN = 8


def play(recipe: str, mark: str | None = None) -> dict[str, Any]:
    """Runs a recipe with the daemon of the environment; the figures of its last line."""
    run = subprocess.run(
        [sys.executable, "-W", "error", RECIPES / recipe / "run.py"],
        capture_output=True,
        text=True,
        timeout=SECS_MAX,
        check=False,
    )
    said = (run.stdout + run.stderr).splitlines()
    assert run.returncode == 0, "\n".join(said[-LINES_SHOWN:])
    word, _, figures = run.stdout.splitlines()[-1].partition(" ")
    assert word == (mark or "FORKD_" + recipe.replace("-", "_").upper())
    found: dict[str, Any] = json.loads(figures)
    return found


def nothing_but_templates(client: Client) -> bool:
    """Whether no snapshot is left that a branch made."""
    return all(snapshot.info.branched_from is None for snapshot in client.snapshots.list())


def test_speculative_fix_tries_three_patches_in_three_branches() -> None:
    # It has a daemon of its own, and checks itself what it leaves behind.
    figures = play("speculative-fix", mark="FORKD_DEMO")
    assert (figures["children"], figures["children_ok"]) == (3, 3)


def test_tree_search_finds_what_a_greedy_search_does_not(client: Client) -> None:
    figures = play("tree-search")
    assert not figures["keep_1"]["solved"]
    assert figures["keep_2"]["solved"]
    assert (figures["source_pushes"], figures["left"]) == (0, 0)
    assert nothing_but_templates(client)


def test_code_interpreter_undoes_the_cell_that_fails(client: Client) -> None:
    figures = play("code-interpreter")
    assert (figures["cells"], figures["undone"], figures["last"]) == (4, 1, "60")
    assert nothing_but_templates(client)


def test_agents_day_keeps_the_version_that_finds_most(client: Client) -> None:
    figures = play("agents-day")
    found = figures["found"]
    assert figures["best"] == max(found, key=found.get) != "1.0"
    assert found[figures["best"]] > found["1.0"]
    assert figures["refused"] == ["example.com"]
    # The source's before the branch, its own, the reload, and the question itself.
    words = 36
    assert figures["visits"] == 2 * words + 2
    assert nothing_but_templates(client)


def test_parallel_pytest_runs_every_test_once(client: Client) -> None:
    figures = play("parallel-pytest")
    assert (figures["children"], figures["passed"], figures["failed"]) == (3, 19, 0)
    assert nothing_but_templates(client)


def test_an_agent_for_e2b_runs_unchanged_and_branches_run_nothing_again(client: Client) -> None:
    figures = play("e2b-agent")
    for version in ("python", "javascript"):
        if version == "javascript" and "javascript_e2b" not in figures:
            continue  # The recipe has said why: Node is too old here.
        e2b, forkd = figures[f"{version}_e2b"], figures[f"{version}_forkd"]
        assert (e2b["left"], e2b["kept"]) == (forkd["left"], forkd["kept"]) == (0, 3)
        assert (e2b["tried"], e2b["run_again"]) == (7, 8)
        assert (forkd["tried"], forkd["run_again"]) == (9, 0)
    assert nothing_but_templates(client)


def test_each_copy_of_a_postgresql_server_at_work_is_consistent(client: Client) -> None:
    figures = play("postgresql-fixture")
    assert (figures["copies"], figures["consistent"], figures["source_goes_on"]) == (3, 3, True)
    assert nothing_but_templates(client)
