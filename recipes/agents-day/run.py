"""An agent's day: see README.md.

Needs the Python SDK, git, and a daemon that lets sandboxes reach this machine
(`forkd serve --network any`). The last line of standard output is `FORKD_AGENTS_DAY` and the
figures as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import packages

from forkd_sdk import Client, ForkdError, NetworkPolicy, Sandbox
from forkd_sdk.errors import NetworkNotPermittedError, NoPreviewsError

HERE = Path(__file__).resolve().parent
EXIT_FAILED = 1
PORT = 8080
# An emulated guest on a busy host takes its time to install something.
SECS_MAX = 300.0
# A sandbox knows this machine by this address.
HOST = "10.42.0.1"

# How people spell, and what they mean.
SPELLED = {
    "acommodate": "accommodate", "arguement": "argument", "beleive": "believe",
    "calender": "calendar", "catagory": "category", "cemetary": "cemetery",
    "concience": "conscience", "definately": "definitely", "embarass": "embarrass",
    "existance": "existence", "freind": "friend", "goverment": "government",
    "grammer": "grammar", "garantee": "guarantee", "heigth": "height", "humerous": "humorous",
    "jewelery": "jewelry", "lisence": "license", "maintainance": "maintenance",
    "millenium": "millennium", "neigbor": "neighbor", "ocasion": "occasion",
    "ocurrence": "occurrence", "posession": "possession", "privelege": "privilege",
    "recieve": "receive", "recomend": "recommend", "resturant": "restaurant",
    "rythm": "rhythm", "seperate": "separate", "speling": "spelling", "thier": "their",
    "twelth": "twelfth", "untill": "until", "vaccum": "vacuum", "wierd": "weird",
}  # fmt: skip


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: object) -> None:
        """Is silent."""


@contextmanager
def company() -> Iterator[int]:
    """What a company has: an index of packages at `/simple` and a repository at `/app.git`. Gives
    the port on this machine.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        packages.publish(place / "simple" / "spelling")
        git = partial(subprocess.run, check=True, capture_output=True, cwd=place)
        git(["git", "init", "-q", "-b", "main", "work"])
        for file in (HERE / "project").iterdir():
            (place / "work" / file.name).write_bytes(file.read_bytes())
        git(["git", "-C", "work", "add", "."])
        who = ["-c", "user.name=ann", "-c", "user.email=ann@example.com"]
        git(
            [
                "git",
                "-C",
                "work",
                *who,
                "commit",
                "-q",
                "-m",
                "An app that suggests words",
            ]
        )
        git(["git", "clone", "-q", "--bare", "work", "app.git"])
        # So that plain files are enough to clone it.
        git(["git", "-C", "app.git", "update-server-info"])
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            server.server_close()


def install(sandbox: Sandbox, company_port: int, version: str) -> None:
    """Installs a version of the package from the company's index."""
    index = f"http://{HOST}:{company_port}/simple"
    sandbox.commands.run(
        f"pip install --quiet --disable-pip-version-check --root-user-action ignore --upgrade "
        f"--target /srv/packages --index-url {index} --trusted-host {HOST} spelling=={version}",
        timeout=SECS_MAX,
    ).raise_for_exit()


def start_app(sandbox: Sandbox) -> None:
    """Starts the app, and waits until it listens."""
    sandbox.commands.start(
        ["python3", "app.py"], cwd="/srv/app", env={"PYTHONPATH": "/srv/packages"}
    )
    while PORT not in [port.port for port in sandbox.ports.list()]:
        time.sleep(0.1)


def right(sandbox: Sandbox) -> int:
    """How many words the app of a sandbox finds."""
    with sandbox.ports.http(PORT) as web:
        found = {
            wrong: web.get("/suggest", params={"word": wrong}).json()["best"] for wrong in SPELLED
        }
    return sum(found[wrong] == meant for wrong, meant in SPELLED.items())


def address_for_people(sandbox: Sandbox) -> str:
    """Where a browser shows the app, if the daemon has previews."""
    try:
        return sandbox.ports.token(PORT).url
    except NoPreviewsError as error:
        return f"not to be had: {error.hint}"


def try_version(child: Sandbox, company_port: int, version: str) -> int:
    """What the running app finds with another version of the package."""
    install(child, company_port, version)
    with child.ports.http(PORT) as web:
        web.get("/reload").raise_for_status()
    return right(child)


def day(client: Client, company_port: int) -> dict[str, object]:
    """The day. Gives its figures."""
    allowed = NetworkPolicy(allow_out=[f"host:{company_port}"])
    with Sandbox.create("python", client=client, network=allowed) as source:
        clone = f"git clone -q http://{HOST}:{company_port}/app.git /srv/app"
        source.commands.run(clone, timeout=SECS_MAX).raise_for_exit()
        install(source, company_port, "1.0")
        source.commands.run("curl -sS https://example.com")
        names = {entry.name for entry in source.network_log().entries if entry.name}
        refused = sorted(name for name in names if name.startswith("example"))
        print("not on the list, so refused:", *refused)
        start_app(source)
        print("the app in a browser:", address_for_people(source))
        found = {"1.0": right(source)}
        versions = [version for version in packages.VERSIONS if version not in found]
        with source.branch(len(versions)) as branch, ThreadPoolExecutor() as pool:
            children = dict(zip(versions, branch.unwrap(), strict=True))
            attempts = {
                version: pool.submit(try_version, child, company_port, version)
                for version, child in children.items()
            }
            found.update((version, attempt.result()) for version, attempt in attempts.items())
            for version, count in found.items():
                print(f"spelling {version}: {count} of {len(SPELLED)}")
            best = max(children, key=lambda version: found[version])
            # The best one is kept: all else goes, and the app in it runs on.
            source.remove()
            for version in set(versions) - {best}:
                children[version].remove()
            print("the best one in a browser:", address_for_people(children[best]))
            # It knows what its source had answered before the branch, and has gone on from there.
            with children[best].ports.http(PORT) as web:
                visits = web.get("/visits").json()["visits"]
    return {"found": found, "best": best, "visits": visits, "refused": refused}


def main() -> None:
    """Runs the recipe."""
    with Client() as client, company() as port:
        try:
            figures = day(client, port)
        except NetworkNotPermittedError as error:
            raise ForkdError(
                error.message,
                hint="stop the daemon, and run `forkd serve --network any`",
            ) from error
    print("FORKD_AGENTS_DAY", json.dumps(figures))


if __name__ == "__main__":
    try:
        main()
    except ForkdError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_FAILED)
