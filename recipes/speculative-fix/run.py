"""Branches a running sandbox three ways and tries another fix in each: see README.md.

Needs Python 3.11 and the program `forkd`, which `FORKD` names. Ends with 0 only if every check held; the
last line of standard output is `FORKD_DEMO` and the figures as JSON.
"""

import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import guest_programs as programs
import result
import shared
import stall
from candidates import (
    CANDIDATES,
    Facts,
    Outcome,
    check_distinct,
    check_isolated,
    check_start,
    facts,
    try_out,
)
from checks import Checks
from cli import CommandFailed, Forkd
from console import Console
from guest_programs import Guest
from result import Measured

IMAGE = "python"
WARM = "python3 -B -c 'import hashlib, json, random, re, socket, threading, unittest'"
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


class Daemon:
    """A daemon for this run: one of our own in a temporary place, or the one of `FORKD_HOME`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.tag = "payouts"
        self._sandboxes: list[str] = []
        self.temporary = Path(tempfile.mkdtemp(prefix="forkd-demo-"))
        environment = dict(os.environ)
        self._own = not environment.get("FORKD_HOME")
        # A socket's path has at most 107 bytes, and `TMPDIR` may be long.
        self._places = [self.temporary]
        if self._own:
            home = Path(tempfile.mkdtemp(prefix="fkd-", dir="/tmp"))
            hot = Path(tempfile.mkdtemp(prefix="fkd-", dir="/dev/shm"))
            environment |= {"FORKD_HOME": str(home), "FORKD_HOT_DIR": str(hot)}
            self._places += [home, hot]
            self._ran_before = False
        else:
            self.tag += f"-{secrets.token_hex(4)}"
            self._ran_before = Path(environment["FORKD_HOME"], "run/forkd.sock").exists()
        self.forkd = Forkd(find_program(), environment, console)

    def built(self) -> None:
        """Makes the template."""
        size = ("--mem-size-mib", "512", "--vcpus", "2")
        begun = time.monotonic()
        self.forkd.run("template", "build", IMAGE, "--tag", self.tag, *size, "--warm", WARM)
        self._console.note(f"booted, warmed up and frozen in {time.monotonic() - begun:.1f} s")

    def forked(self) -> str:
        """A sandbox."""
        sandbox = self.forkd.run("fork", self.tag, "-n", "1")[0]["id"]
        self._sandboxes.append(sandbox)
        return sandbox

    def close(self) -> None:
        """Leaves nothing behind, whatever state the run is in."""
        self.forkd.end_all()
        try:
            if self._own:
                self.forkd.run("rm", "--all", show=False)
            elif self._sandboxes:
                self.forkd.run("snapshot", "rm", self.tag, "--cascade", show=False)
            if not self._ran_before:
                self.forkd.run("stop", show=False)
        except CommandFailed as error:
            print(f"error: while cleaning up: {error}", file=sys.stderr)
        for place in self._places:
            shutil.rmtree(place, ignore_errors=True)


def find_program() -> str:
    """The program that `FORKD` names, else the one built here, else the installed one."""
    built = Path(__file__).resolve().parents[2] / "target" / "release" / "forkd"
    program = os.environ.get("FORKD") or (str(built) if built.exists() else shutil.which("forkd"))
    if not program:
        raise CommandFailed("forkd is not installed; set FORKD to the program")
    return program


def set_up(daemon: Daemon, console: Console) -> Guest:
    """A sandbox with the program on its disk and the guest programs at work."""
    console.heading("A sandbox with a program at work")
    daemon.built()
    sandbox = daemon.forked()
    guest = Guest(daemon.forkd, sandbox, show=True)
    archive = daemon.temporary / "payouts.tar"
    programs.archive(archive)
    daemon.forkd.run("cp", str(archive), f"{sandbox}:{shared.HOME}/")
    daemon.forkd.output(sandbox, "tar", "xf", "payouts.tar", cwd=shared.HOME)
    daemon.forkd.output(sandbox, "sh", f"{shared.HOME}/guest/start.sh")
    guest.ask("--wait", str(programs.START_SECS), "worker", "status")
    return guest


def look(guest: Guest, console: Console) -> Facts:
    """What the source is before it is branched."""
    before = facts(guest)
    status, journal = before.status, before.status["journal"]
    console.note(
        f"worker {status['pid']}: {shared.STATE_MIB} MiB of state, counter {status['counter']}, "
        f"{status['exchanges']} messages to peer {status['peer_pid']},"
    )
    console.note(
        f"open file with {journal['on_disk_bytes']} bytes on disk and "
        f"{journal['buffered_bytes']} in the process; tests passed {before.suite}"
    )
    return before


def branch(guest: Guest, before: Facts, console: Console) -> tuple[dict, list[Outcome], stall.Stall]:
    """Branches while everything runs, tries one candidate in each child, and reads the meter."""
    console.heading("Branch it while it runs; another fix in each child")
    quiet = Guest(guest.forkd, guest.sandbox)
    stall.start(quiet)
    requested, requested_unix = time.monotonic(), time.time()
    answer = guest.forkd.run("branch", guest.sandbox, "-n", str(len(CANDIDATES)))
    children = [child["sandbox"]["id"] for child in answer["children"] if "sandbox" in child]
    show_child_commands(console)
    with ThreadPoolExecutor(len(CANDIDATES)) as pool:
        trials = [
            pool.submit(try_out, Guest(guest.forkd, child), candidate, before, requested)
            for child, candidate in zip(children, CANDIDATES, strict=False)
        ]
        try:
            outcomes = [trial.result() for trial in trials]
        except BaseException:
            guest.forkd.end_all()
            raise
    check_distinct(outcomes)
    return answer, outcomes, stall.result(quiet, requested_unix)


def show_child_commands(console: Console) -> None:
    """The commands that every child gets; they run at the same time, so each is shown once."""
    console.note("in each CHILD, at the same time:")
    ask = [*programs.ASK, "worker"]
    patch = ["python3", "-SE", f"{shared.HOME}/guest/apply_patch.py", shared.PROGRAM]
    steps = [
        (["--", *ask, "status"], None),
        (["--", *ask, "hash"], None),
        (["--stdin", "--", *patch], "patches/PATCH"),
        (["--cwd", shared.PROGRAM, "--", *programs.SUITE], None),
        (["--", *ask, "replay", str(programs.REPLAY_ORDERS)], None),
        (["--", *ask, "finish"], None),
        (["--", "sha256sum", shared.JOURNAL], None),
    ]
    for step, stdin in steps:
        console.command(["exec", "CHILD", *step], stdin)


def story(daemon: Daemon, console: Console) -> tuple[Measured, list[Checks]]:
    """The whole demonstration, without an opinion on it."""
    guest = set_up(daemon, console)
    before = look(guest, console)
    source = Checks(f"{guest.sandbox} (source)")
    check_start(source, before, programs.state_sha256())
    quiet = Guest(guest.forkd, guest.sandbox)
    stall.start(quiet)
    floor = stall.result(quiet, time.time())
    answer, outcomes, gaps = branch(guest, before, console)
    after = facts(quiet)
    check_isolated(source, before, after)
    source.equal("the finished journal", quiet.finish_journal(), programs.journal_sha256())
    for name, measurement in (("floor", floor), ("branch", gaps)):
        source.equal(f"the meter runs at real-time priority ({name})", measurement.real_time, True)
        source.equal(f"the meter covers the time around the {name}", measurement.covered, True)
    source.equal("children", len(outcomes), len(CANDIDATES))
    measured = Measured(guest.sandbox, before, after, answer, outcomes, gaps, floor)
    return measured, [source, *(outcome.checks for outcome in outcomes)]


def conclude(console: Console, checks: list[Checks]) -> int:
    """Says which checks failed; the exit code."""
    console.heading("Checks")
    failures = [failure for subject in checks for failure in subject.failures]
    for failure in failures:
        console.failure(failure)
    made = sum(subject.made for subject in checks)
    if failures:
        console.note(f"{len(failures)} of {made} checks failed")
        return EXIT_FAILED
    console.success(f"all {made} checks held")
    return 0


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, interrupt)
    console = Console()
    daemon = None
    try:
        daemon = Daemon(console)
        measured, checks = story(daemon, console)
        result.show(console, measured)
        code = conclude(console, checks)
    except CommandFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        # A second interrupt must not leave machines running.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if daemon is not None:
            daemon.close()
    console.plain(measured.machine_line())
    return code


if __name__ == "__main__":
    sys.exit(main())
