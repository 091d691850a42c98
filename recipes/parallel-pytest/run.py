"""Prepares a test suite once and runs its files in branches: see README.md.

Needs the Python SDK, pytest and a daemon. Ends with 0 only if no test failed; the last line of
standard output is `FORKD_PARALLEL_PYTEST` and the figures as JSON.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkd_sdk import Client, ForkdError, Sandbox

HERE = Path(__file__).resolve().parent
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

# Installed here, copied there: sandboxes have no network. All are pure Python.
DISTRIBUTIONS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")

PREPARE = """
import sys
sys.path[:0] = ["/srv/site", "/srv/project"]
import pytest
import project.state
project.state.prepare()
"""

RUN = """
class Note:
    def __init__(self):
        self.outcomes = {{}}
    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.failed:
            self.outcomes[report.nodeid] = report.outcome

import json
note = Note()
pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir=/srv/project", *{files!r}], plugins=[note])
print("\\n" + json.dumps(note.outcomes))
"""


@dataclass(frozen=True)
class Outcome:
    """What a child gave."""

    sandbox: str
    files: list[str]
    outcomes: dict[str, str]
    secs: float


def archive() -> bytes:
    """The project, pytest and what it needs."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in DISTRIBUTIONS:
            for file in importlib.metadata.files(name) or ():
                path = Path(str(file.locate()))
                if path.suffix == ".py" and ".." not in file.parts:
                    tar.add(path, f"site/{file}")
        tar.add(HERE / "project", "project/project")
    return packed.getvalue()


def spread(files: list[Path], children: int) -> list[list[str]]:
    """The test files over so many children, the largest first, each to whom has least."""
    shares: list[tuple[int, list[str]]] = [(0, []) for _ in range(min(children, len(files)))]
    for file in sorted(files, key=lambda path: -path.stat().st_size):
        at = min(range(len(shares)), key=lambda index: shares[index][0])
        size, names = shares[at]
        shares[at] = (
            size + file.stat().st_size,
            [*names, f"/srv/project/project/tests/{file.name}"],
        )
    return [names for _, names in shares]


def run(sandbox: Sandbox, files: list[str]) -> Outcome:
    """Runs test files in a child, in the process that was prepared."""
    begun = time.monotonic()
    execution = sandbox.run_code(RUN.format(files=files), timeout=300).raise_for_error()
    outcomes: dict[str, str] = json.loads(execution.stdout.strip().rpartition("\n")[2])
    return Outcome(sandbox.id, files, outcomes, time.monotonic() - begun)


def story(sandbox: Sandbox, children: int) -> dict[str, Any]:
    """Prepares, branches, runs and counts."""
    sandbox.files.write("/srv/all.tar.gz", archive())
    sandbox.commands.run(["tar", "xzf", "all.tar.gz"], cwd="/srv", check=True)
    begun = time.monotonic()
    sandbox.run_code(PREPARE, timeout=300).raise_for_error()
    prepared = time.monotonic() - begun
    print(f"prepared once in {prepared:.1f} s: pytest imported, the project's state built")
    shares = spread(sorted((HERE / "project" / "tests").glob("test_*.py")), children)
    begun = time.monotonic()
    with sandbox.branch(len(shares)) as branch, ThreadPoolExecutor(len(shares)) as pool:
        outcomes = list(pool.map(run, branch.unwrap(), shares))
    secs = time.monotonic() - begun
    for outcome in outcomes:
        names = ", ".join(Path(file).name for file in outcome.files)
        print(
            f"  {outcome.sandbox}: {len(outcome.outcomes)} tests in {outcome.secs:.1f} s: {names}"
        )
    every = {name: word for outcome in outcomes for name, word in outcome.outcomes.items()}
    for name, word in sorted(every.items()):
        if word != "passed":
            print(f"  {word}: {name}")
    passed = sum(word == "passed" for word in every.values())
    return {
        "children": len(shares),
        "passed": passed,
        "failed": len(every) - passed,
        "prepare_secs": round(prepared, 2),
        "secs": round(secs, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Run test files in branches of one sandbox.")
    parser.add_argument("--children", type=int, default=3, metavar="N")
    options = parser.parse_args()
    try:
        with Client() as client, Sandbox.create("python", client=client) as sandbox:
            figures = story(sandbox, max(1, options.children))
    except ForkdError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    print("FORKD_PARALLEL_PYTEST " + json.dumps(figures))
    return 0 if figures["failed"] == 0 and figures["passed"] else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
