"""An agent loop for E2B: it tries what a model proposes, and keeps what leaves fewer problems.

A proposal that does not help has changed the sandbox all the same. So the loop begins with a new
one, and runs again all that it had kept.
"""

import json
import sys
from pathlib import Path

from e2b_code_interpreter import Sandbox

TASK = json.loads(Path(__file__).with_name("task.json").read_text())


def fresh(kept):
    """A new sandbox in which all that was kept has run."""
    sandbox = Sandbox.create(timeout=600)
    for code in kept:
        sandbox.run_code(code)
    return sandbox


def problems(sandbox):
    """How many are left; None if that cannot be told."""
    execution = sandbox.run_code(TASK["check"])
    return None if execution.error else int(execution.text)


kept = [TASK["setup"]]
sandbox = fresh(kept)
left = problems(sandbox)
figures = {"sandboxes": 1, "tried": 0, "run_again": 0}
for proposals in TASK["turns"]:
    for code in proposals:
        figures["tried"] += 1
        failed = sandbox.run_code(code).error is not None
        now = problems(sandbox)
        if not failed and now is not None and now < left:
            kept.append(code)
            left = now
            break
        sandbox.kill()
        sandbox = fresh(kept)
        figures["sandboxes"] += 1
        figures["run_again"] += len(kept)
sandbox.kill()
json.dump({"left": left, "kept": len(kept) - 1, **figures}, sys.stdout)
