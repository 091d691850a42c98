"""Factors a matrix with one daemon, and goes on from there with another: see README.md.

Needs the Python SDK, a daemon, the programs `forkd` and `docker-registry`, and the image
`python-numpy`. Ends with 0 only if every child computed what it should; the last line of standard
output is `FORKD_SHARED_STATE` and the figures as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from forkd_sdk import Client, ForkdError, Sandbox, Snapshot

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
IMAGE = "python-numpy"
CHILDREN = 5
# For a program that was started to listen.
START_SECS = 60
# Nothing of it leads to the daemon of the command line.
OUR_OWN = {
    name: value
    for name, value in os.environ.items()
    if name not in ("FORKD_HOME", "FORKD_SOCKET", "FORKD_TOKEN", "FORKD_URL")
}

# What takes long is done once; the factors stay in memory, and nothing of it is in a file.
FACTOR = """
import numpy as np
rng = np.random.default_rng(7)
n = 700
matrix = rng.standard_normal((n, n)) + n * np.eye(n)
inverse = np.linalg.inv(matrix)
history = ["factored"]
"""
# What each child does with them: another right-hand side.
SOLVE = """
b = np.random.default_rng({number}).standard_normal(n)
x = inverse @ b
history.append("solved {number}")
float(np.abs(matrix @ x - b).max()), history
"""


class RecipeError(Exception):
    """What the recipe needs is not there, or something is not as it should be."""


@contextmanager
def running(
    command: list[str], log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that ends with the recipe. What it says is in `log`."""
    with log.open("wb") as said:
        try:
            process = subprocess.Popen(  # noqa: S603
                command, stdout=said, stderr=said, env=OUR_OWN | dict(variables or {})
            )
        except FileNotFoundError as error:
            raise RecipeError(f"`{command[0]}` is not installed: {error}") from error
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def until(process: subprocess.Popen[bytes], log: Path, words: str) -> re.Match[str]:
    """Waits until the program has said `words`, a regular expression."""
    end = time.monotonic() + START_SECS
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(words, log.read_text(errors="replace")):
            return found
        time.sleep(0.05)
    raise RecipeError(f"it does not run: {log.read_text(errors='replace')[-500:]}")


def registry(stack: ExitStack, folder: Path) -> str:
    """A registry of our own on this host; its address."""
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": "127.0.0.1:0"},
    }
    # Its configuration is YAML, of which JSON is a part.
    file, log = folder / "registry.yml", folder / "registry.log"
    file.write_text(json.dumps(config))
    process = stack.enter_context(running(["docker-registry", "serve", str(file)], log))
    return "localhost:" + until(process, log, r"listening on 127\.0\.0\.1:(\d+)")[1]


def other_daemon(stack: ExitStack, folder: Path) -> Client:
    """A daemon of our own, which has nothing of the first one."""
    forkd = os.environ.get("FORKD", "forkd")
    home, log = folder / "there", folder / "forkd.log"
    home.mkdir()
    hot = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
    own = {"FORKD_HOME": str(home), "FORKD_HOT_DIR": f"{hot}/hot"}
    process = stack.enter_context(running([forkd, "serve"], log, own))
    until(process, log, "listening")
    return stack.enter_context(Client(f"unix:{home}/run/forkd.sock"))


def template(client: Client) -> Snapshot:
    """A template of the image."""
    if all(image.name != IMAGE for image in client.images()):
        raise RecipeError(
            f"no image `{IMAGE}`; build it with `cargo run -p xtask -- images {IMAGE}`"
        )
    if all(snapshot.tag != IMAGE for snapshot in client.snapshots.list()):
        client.snapshots.build(IMAGE, image=IMAGE)
    return client.snapshots.get(IMAGE)


def timed(figures: dict[str, Any], name: str, begun: float) -> None:
    figures[name] = round(time.monotonic() - begun, 2)
    print(f"{name}: {figures[name]} s")


def go_on(snapshot: Snapshot) -> list[tuple[float, list[str]]]:
    """Each child solves another system with the factors that it finds in its memory."""
    children = snapshot.fork(CHILDREN)
    try:
        with ThreadPoolExecutor(CHILDREN) as pool:
            return list(pool.map(solve, children, range(CHILDREN)))
    finally:
        for child in children:
            child.remove()


def solve(child: Sandbox, number: int) -> tuple[float, list[str]]:
    said = child.run_code(SOLVE.format(number=number)).raise_for_error().result
    error, history = json.loads(str(said).replace("(", "[").replace(")", "]").replace("'", '"'))
    return float(error), history


def story(here: Client, there: Client, host: str) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    template(here)
    base, state = f"{host}/lab/matrix:base", f"{host}/lab/matrix:factored"
    with here.sandboxes.create(IMAGE) as source:
        begun = time.monotonic()
        source.run_code(FACTOR, timeout=600).raise_for_error()
        timed(figures, "factor", begun)
        branch = source.branch(tag="factored")
        figures["pause_ms"] = branch.snapshot.info.pause_ms
        try:
            here.snapshots.push(IMAGE, base)
            begun = time.monotonic()
            pushed = here.snapshots.push("factored", state)
            timed(figures, "push", begun)
        finally:
            branch.remove()
    figures |= {"bytes": pushed.bytes, "bytes_sent": pushed.bytes_sent}
    print(f"sent {pushed.bytes_sent} of {pushed.bytes} bytes: the template was there")
    there.keys.trust("here", here.keys.get().key)
    found = there.snapshots.hub_info(state)
    print(f"{found.reference}, signed by {found.trusted_as}, {found.mem_size_mib} MiB")
    begun = time.monotonic()
    snapshot = there.snapshots.pull(state)
    timed(figures, "pull", begun)
    begun = time.monotonic()
    solved = go_on(snapshot)
    timed(figures, f"{CHILDREN} children until all have solved", begun)
    figures["errors"] = [error for error, _ in solved]
    figures["histories"] = [history for _, history in solved]
    return figures


def is_right(figures: dict[str, Any]) -> bool:
    histories = [["factored", f"solved {number}"] for number in range(CHILDREN)]
    return bool(figures["histories"] == histories and max(figures["errors"]) < 1e-6)


def main() -> int:
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            here = stack.enter_context(Client())
            host = registry(stack, folder)
            figures = story(here, other_daemon(stack, folder), host)
    except (RecipeError, ForkdError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    print("FORKD_SHARED_STATE " + json.dumps(figures))
    return 0 if is_right(figures) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
