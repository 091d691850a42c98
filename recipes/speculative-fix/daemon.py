"""A daemon to run the demonstration on, and leaving nothing of it behind."""

import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from cli import CommandFailed, Forkd
from console import Console

IMAGE = "python"
MEM_SIZE_MIB = 512
# One for everything, one for the stall meter.
VCPUS = 2
WARM = "python3 -c 'import hashlib, json, random, re, socket, threading, unittest'"

# They would lead to another daemon than the one of our own home.
FOREIGN = ("FORKD_SOCKET", "FORKD_URL", "FORKD_STATE_DIR")


class Daemon:
    """A daemon of our own in a temporary place; with `FORKD_HOME` set, the one of that home.

    The command line starts it when it does not run.
    """

    def __init__(self, console: Console) -> None:
        program, environment = find_program(), dict(os.environ)
        self._own = not environment.get("FORKD_HOME")
        self._ran_before = False
        self.tag = "payouts"
        # Not below `TMPDIR`: it may be long, and the path of a socket has at most 107 bytes.
        self.temporary = Path(tempfile.mkdtemp(prefix="fkd-", dir="/tmp"))
        self._places = [self.temporary]
        if self._own:
            hot = Path(tempfile.mkdtemp(prefix="fkd-", dir="/dev/shm"))
            self._places.append(hot)
            environment = {k: v for k, v in environment.items() if k not in FOREIGN}
            environment["FORKD_HOME"] = str(self.temporary / "home")
            environment["FORKD_HOT_DIR"] = str(hot)
        else:
            # Others may have a template of the same name there.
            self.tag += f"-{secrets.token_hex(4)}"
            self._ran_before = Path(environment["FORKD_HOME"], "run/forkd.sock").exists()
        self.forkd = Forkd(program, environment, console)

    def build(self) -> None:
        """Makes the template."""
        size = ("--mem-size-mib", str(MEM_SIZE_MIB), "--vcpus", str(VCPUS))
        self.forkd.run("template", "build", IMAGE, "--tag", self.tag, *size, "--warm", WARM)

    def fork(self) -> dict[str, Any]:
        """A sandbox of the template."""
        sandbox: dict[str, Any] = self.forkd.run("fork", self.tag, "-n", "1")[0]
        return sandbox

    def close(self) -> None:
        """Removes all that this run has made, however far it came."""
        self.forkd.end_all()
        if self._own:
            self._attempt("rm", "--all")
        elif any(snapshot["tag"] == self.tag for snapshot in self._attempt("snapshots") or ()):
            self._attempt("snapshot", "rm", self.tag, "--cascade")
        if not self._ran_before:
            self._attempt("stop")
        for place in self._places:
            shutil.rmtree(place, ignore_errors=True)

    def _attempt(self, *command: str) -> Any:
        """The command's answer; what goes wrong is told and does not keep the next one from it."""
        try:
            return self.forkd.run(*command, show=False)
        except CommandFailed as error:
            print(f"error: while cleaning up: {error}", file=sys.stderr)
            return None


def find_program() -> str:
    """The program that `FORKD` names, else the one built here, else the installed one."""
    built = Path(__file__).resolve().parents[2] / "target" / "release" / "forkd"
    program = os.environ.get("FORKD") or (str(built) if built.exists() else shutil.which("forkd"))
    if not program:
        raise CommandFailed("forkd is not installed; set FORKD to the program")
    return program
