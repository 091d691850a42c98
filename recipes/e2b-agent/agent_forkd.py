"""The agent loop of `agent_e2b.py` with branches: all proposals at once, each in a child.

A child is a copy of the sandbox as it runs, so nothing is run again: the best child goes on.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from forkd_sdk import Sandbox

TASK = json.loads(Path(__file__).with_name("task.json").read_text())


def problems(sandbox):
    """How many are left; None if that cannot be told."""
    execution = sandbox.run_code(TASK["check"])
    return int(execution.text) if execution.ok else None


def outcome(child, code):
    """How many problems a proposal leaves; None if it fails."""
    return problems(child) if child.run_code(code).ok else None


source = sandbox = Sandbox.create("python")
sandbox.run_code(TASK["setup"])
left = problems(sandbox)
branches, kept = [], 0
figures = {"sandboxes": 1, "tried": 0, "run_again": 0}
with ThreadPoolExecutor() as pool:
    for proposals in TASK["turns"]:
        branch = sandbox.branch(len(proposals))
        branches.append(branch)
        children = branch.unwrap()
        found = list(pool.map(outcome, children, proposals))
        figures["tried"] += len(proposals)
        figures["sandboxes"] += len(children)
        best = min((now for now in found if now is not None), default=left)
        if best < left:
            sandbox, left, kept = children[found.index(best)], best, kept + 1
for branch in branches:
    branch.remove()
source.remove()
json.dump({"left": left, "kept": kept, **figures}, sys.stdout)
