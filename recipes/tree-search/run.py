"""Solves a puzzle by branching a program that cannot take a move back: see README.md.

Needs the Python SDK and a daemon. Ends with 0 only if the puzzle is solved and nothing is left; the
last line of standard output is `FORKD_TREE_SEARCH` and the figures as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from forkd_sdk import Client, Exploration, ForkdError, Node, Sandbox, explore

GUEST = Path(__file__).resolve().parent / "guest"
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
DEPTH = 12

# The program runs in a process of its own; the interpreter holds the pipes to it. A branch copies
# all three.
START = """
import json, subprocess
game = subprocess.Popen(
    ["python3", "/srv/game.py", "/srv/level.txt"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
)
def ask(line):
    game.stdin.write(line + "\\n")
    game.stdin.flush()
    return json.loads(game.stdout.readline())
"""


def ask(sandbox: Sandbox, line: str) -> Any:
    """What the program in a sandbox answers."""
    return json.loads(
        sandbox.run_code(f"print(json.dumps(ask({line!r})))").raise_for_error().stdout
    )


def pushes(node: Node[Sandbox]) -> list[str]:
    """What can be played from a state: the code of each push."""
    moves = ask(node.sandbox, "moves")
    return [
        f"ask('push {number}')  # the box in row {row}, column {column}: {direction}"
        for number, (row, column, direction) in enumerate(moves)
    ]


class Judge:
    """Tells how good a position is; one that was seen before, or is hopeless, is a dead end."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, sandbox: Sandbox) -> float | None:
        look = ask(sandbox, "look")
        with self._lock:
            known = look["position"] in self._seen
            self._seen.add(look["position"])
        return None if known or look["stuck"] else -float(look["distance"])


def search(sandbox: Sandbox, keep: int) -> Exploration:
    """Plays on from the sandbox's position; the best `keep` states of each level go on."""
    return explore(sandbox, pushes, Judge(), keep=keep, depth=DEPTH, enough=0)


def tell(found: Exploration, keep: int, secs: float) -> bool:
    """Prints how a search went; whether the puzzle is solved."""
    best = found.best
    solved = best is not None and ask(best.sandbox, "look")["solved"]
    outcome = f"solved with {best.depth} pushes" if best and solved else "a dead end"
    print(f"keep={keep}: {found.tried} pushes tried in as many children, {secs:.1f} s: {outcome}")
    if best is not None and solved:
        for code in best.path:
            print("   " + code.partition("# ")[2])
        print(ask(best.sandbox, "show"))
    return solved


def story(client: Client, sandbox: Sandbox) -> dict[str, Any]:
    """A search that is too greedy, one that is not, and the state that both started from."""
    for name in ("game.py", "level.txt"):
        sandbox.files.write(f"/srv/{name}", (GUEST / name).read_bytes())
    sandbox.run_code(START).raise_for_error()
    print(ask(sandbox, "show"))
    figures: dict[str, Any] = {}
    for keep in (1, 2):
        begun = time.monotonic()
        with search(sandbox, keep) as found:
            secs = time.monotonic() - begun
            solved = tell(found, keep, secs)
            figures[f"keep_{keep}"] = {
                "solved": solved,
                "tried": found.tried,
                "secs": round(secs, 1),
            }
    look = ask(sandbox, "look")
    figures["source_pushes"] = look["pushes"]
    left = [
        box.id for box in client.sandboxes.list() if box.info.snapshot_tag.startswith("explore-")
    ]
    figures["left"] = len(left)
    return figures


def main() -> int:
    try:
        with Client() as client, Sandbox.create("python", client=client) as sandbox:
            figures = story(client, sandbox)
    except ForkdError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    print("FORKD_TREE_SEARCH " + json.dumps(figures))
    well = figures["keep_2"]["solved"] and figures["source_pushes"] == 0 and not figures["left"]
    return 0 if well else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
