"""Plays an agent loop in four versions: for E2B and with branches, in two languages.

Needs the Python SDK, a daemon, and E2B's variables. The last line of standard output is
`FORKD_E2B_AGENT` and the figures as JSON. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TYPESCRIPT_SDK = HERE.parents[1] / "sdk" / "typescript"
EXIT_FAILED = 1
PYTHON_PACKAGE = "e2b-code-interpreter==2.11.5"
NPM_PACKAGE = "@e2b/code-interpreter@2.8.0"
# E2B's package asks for it.
NODE_MAJOR_MINIMUM = 20
VARIABLES = ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_API_KEY")
# Runs a program as Python does, but skips the interpreter's teardown: the package's HTTP library
# aborts there in about a fifth of all runs, against any server.
RUN_AND_END = """
import os, runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
sys.stdout.flush()
os._exit(0)
"""


class RecipeError(Exception):
    """The recipe cannot go on."""


def checked(command: list[str | Path], folder: Path | None = None) -> str:
    """What a command says that must succeed."""
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if run.returncode != 0:
        raise RecipeError(f"{command[0]} failed: {(run.stdout + run.stderr).strip()}")
    return run.stdout


def python_with_e2b(place: Path) -> Path:
    """An interpreter that has E2B's package."""
    checked([sys.executable, "-m", "venv", place / "venv"])
    python = place / "venv" / "bin" / "python"
    checked([python, "-m", "pip", "install", "--quiet", PYTHON_PACKAGE])
    return python


def node_obstacle() -> str | None:
    """Why the versions in JavaScript cannot be played here."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "Node and npm are not installed"
    version = checked(["node", "--version"]).strip()
    if int(version.removeprefix("v").partition(".")[0]) < NODE_MAJOR_MINIMUM:
        return f"E2B's package needs Node {NODE_MAJOR_MINIMUM}, this is {version}"
    if not (TYPESCRIPT_SDK / "dist").exists():
        return f"the TypeScript SDK is not built: run `npm ci` in {TYPESCRIPT_SDK}"
    return None


def programs_with_packages(place: Path) -> Path:
    """A folder with the programs in JavaScript, E2B's package and forkd's."""
    folder = place / "npm"
    folder.mkdir()
    quiet = ["--silent", "--no-audit", "--no-fund"]
    checked(["npm", "install", *quiet, "--prefix", folder, NPM_PACKAGE])
    (folder / "node_modules" / "forkd-sdk").symlink_to(TYPESCRIPT_SDK)
    for name in ("agent_e2b.mjs", "agent_forkd.mjs", "task.json"):
        shutil.copy(HERE / name, folder)
    return folder


def played(command: list[str | Path], folder: Path | None = None) -> dict[str, Any]:
    """The figures that a version prints, and how long it took."""
    begun = time.monotonic()
    figures: dict[str, Any] = json.loads(checked(command, folder))
    return figures | {"secs": round(time.monotonic() - begun, 2)}


def play() -> dict[str, Any]:
    """All versions that this machine can play."""
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    if missing:
        raise RecipeError(f'{missing[0]} is not set; eval "$(forkd e2b env)" sets it')
    # First: it makes the template if there is none.
    figures = {"python_forkd": played([sys.executable, HERE / "agent_forkd.py"])}
    with tempfile.TemporaryDirectory(prefix="forkd-e2b-") as name:
        python = python_with_e2b(Path(name))
        figures["python_e2b"] = played([python, "-c", RUN_AND_END, HERE / "agent_e2b.py"])
        obstacle = node_obstacle()
        if obstacle is None:
            folder = programs_with_packages(Path(name))
            figures["javascript_forkd"] = played(["node", "agent_forkd.mjs"], folder)
            figures["javascript_e2b"] = played(["node", "agent_e2b.mjs"], folder)
        else:
            print(f"not played: the versions in JavaScript: {obstacle}")
    return figures


def main() -> int:
    argparse.ArgumentParser(description="Play an agent in four versions.").parse_args()
    try:
        figures = play()
    except RecipeError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    for version, found in figures.items():
        print(f"{version}: {found}")
    print("FORKD_E2B_AGENT " + json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
