"""How long until the children of a branch have answered: `python -m forkd_sdk.bench`.

One round: a sandbox with some state is branched into three children, and each of them answers
`run_code` with that state; the time is from the request to the last answer. The answers are asked
for at the same time, and must be right. Rounds follow each other, nothing else is done meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from . import Client, ForkdError, Sandbox

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Round:
    """One branch; all in milliseconds from the request."""

    branched: float
    """Until the answer that tells of the children."""
    answered: float
    """Until the last child had answered."""
    pause: float
    """How long the source stood still, as the daemon measured it."""


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that so many percent of all do not exceed."""
    ordered = sorted(values)
    rank = math.ceil(percent / 100 * len(ordered))
    return ordered[max(rank, 1) - 1]


def measure(sandbox: Sandbox, children: int, number: int) -> Round:
    """One round; what it made is removed after the measurement."""
    sandbox.run_code(f"number = {number}").raise_for_error()
    begun = time.perf_counter()
    branch = sandbox.branch(children)
    branched = time.perf_counter()
    try:
        boxes = branch.unwrap()
        with ThreadPoolExecutor(max(children, 1)) as pool:
            answers = list(pool.map(lambda box: box.run_code("number").result, boxes))
        answered = time.perf_counter()
    finally:
        branch.remove()
    if answers != [str(number)] * children:
        raise ForkdError(f"a child of round {number} answered wrongly: {answers}")
    return Round(
        branched=1000 * (branched - begun),
        answered=1000 * (answered - begun),
        pause=branch.snapshot.pause_ms or 0.0,
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m forkd_sdk.bench",
        description="Measure from the request of a branch to the answers of its children.",
    )
    parser.add_argument("--template", default="python", help="snapshot or image to start from")
    parser.add_argument("--children", type=int, default=3, metavar="N", help="of each branch")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="branches to measure")
    parser.add_argument("--warm-up", type=int, default=1, metavar="N", help="rounds before them")
    parser.add_argument("--json", action="store_true", help="print every round as JSON")
    options = parser.parse_args()
    if options.rounds < 1 or options.children < 1 or options.warm_up < 0:
        parser.error("there must be at least one round and one child")
    return options


def show(rounds: list[Round], children: int, accelerator: str) -> None:
    """The figures as a table."""
    print(f"{len(rounds)} branches with {children} children each, {accelerator}, ms")
    print(f"{'':34} {'p50':>8} {'p99':>8} {'max':>8}")
    rows = {
        "request to the last answer": [each.answered for each in rounds],
        "request to running children": [each.branched for each in rounds],
        "pause of the source": [each.pause for each in rounds],
    }
    for name, values in rows.items():
        figures = (percentile(values, 50), percentile(values, 99), max(values))
        print(f"{name:34} " + " ".join(f"{figure:8.1f}" for figure in figures))


def main() -> int:
    """Measures and prints; the exit code."""
    options = arguments()
    try:
        with (
            Client() as client,
            Sandbox.create(options.template, client=client) as sandbox,
        ):
            accelerator = client.version().accelerator or "unknown accelerator"
            numbers = range(options.warm_up + options.rounds)
            rounds = [measure(sandbox, options.children, number) for number in numbers]
    except ForkdError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    measured = rounds[options.warm_up :]
    if options.json:
        print(json.dumps([asdict(each) for each in measured]))
    else:
        show(measured, options.children, accelerator)
    return 0


if __name__ == "__main__":
    sys.exit(main())
