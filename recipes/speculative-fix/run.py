"""Branches a running sandbox three ways and tries another fix in each: see README.md.

Needs Python 3.11 and the program `forkd`, which `FORKD` names. Ends with 0 only if every check
held; the last line of standard output is `FORKD_DEMO` and the figures as JSON.
"""

import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import FrameType
from typing import Any

import guest_programs as programs
import result
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
from cli import CommandFailed, exec_command
from console import Console
from daemon import Daemon
from guest_programs import Guest
from result import Measured
from stall import Stall

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def set_up(daemon: Daemon, console: Console) -> Guest:
    """A sandbox with the program on its disk and the guest programs at work."""
    console.heading("A sandbox with a program at work")
    begun = time.monotonic()
    daemon.build()
    console.note(f"booted, warmed up and frozen in {time.monotonic() - begun:.1f} s")
    started = daemon.fork()
    sandbox = str(started["id"])
    guest = Guest(daemon.forkd, sandbox, started["start_ms"], show=True)
    archive = daemon.temporary / "payouts.tar"
    programs.archive(archive)
    daemon.forkd.run("cp", str(archive), f"{sandbox}:{programs.shared.HOME}/")
    daemon.forkd.output(sandbox, "tar", "xf", archive.name, cwd=programs.shared.HOME)
    daemon.forkd.output(sandbox, "sh", f"{programs.shared.HOME}/guest/start.sh")
    for name in ("worker", "meter"):
        guest.ask("--wait", str(programs.START_SECS), name, "ready")
    return guest


def look(guest: Guest, console: Console) -> Facts:
    """What the source is before it is branched."""
    before = facts(guest)
    status, journal = before.status, before.status["journal"]
    console.note(
        f"worker, process {status['pid']}: {programs.shared.STATE_MIB} MiB of state, "
        f"counter {status['counter']}, {status['exchanges']} messages to the peer"
    )
    console.note(
        f"open file: {journal['on_disk_bytes']} bytes on disk, "
        f"{journal['buffered_bytes']} still in the process"
    )
    console.note(f"suite: {before.suite} pass; orders divided wrongly: {before.replay_wrong}")
    return before


def floor_of(guest: Guest) -> Stall:
    """The stall meter without a branch."""
    stall.start(guest)
    return stall.result(guest)


def branch(
    guest: Guest, before: Facts, source: Checks, console: Console
) -> tuple[dict[str, Any], list[Outcome], list[Checks]]:
    """Branches while everything runs and tries one candidate in each child."""
    requested = time.monotonic()
    count = len(CANDIDATES)
    answer = guest.forkd.run("branch", guest.sandbox, "-n", str(count), partly=True)
    children = [child["sandbox"] for child in answer["children"] if "sandbox" in child]
    errors = [child["error"]["error"] for child in answer["children"] if "error" in child]
    found = [*(child["id"] for child in children), *errors]
    source.holds("children started", len(children) == count, found, count)
    console.note(
        f"source paused for {answer['pause_ms']:.2f} ms, snapshot ready after "
        f"{answer['ready_ms']:.0f} ms, {len(children)} children"
    )
    show_child_commands(console)
    outcomes, broken = [], []
    with ThreadPoolExecutor(count) as pool:
        trials = {
            child["id"]: pool.submit(
                try_out,
                Guest(guest.forkd, child["id"], child["start_ms"]),
                candidate,
                before,
                requested,
            )
            for child, candidate in zip(children, CANDIDATES, strict=False)
        }
        try:
            for child, trial in trials.items():
                try:
                    outcomes.append(trial.result())
                except CommandFailed as error:
                    broken.append(Checks(child))
                    broken[-1].holds("commands", False, error, "success")
        except BaseException:
            guest.forkd.end_all()
            raise
    check_distinct(outcomes)
    return answer, outcomes, broken


def show_child_commands(console: Console) -> None:
    """The commands that every child gets; they run at the same time, so each is shown once."""
    console.note("in every CHILD at the same time, each with its own PATCH:")
    ask = [*programs.ASK, "worker"]
    steps = [
        (exec_command("CHILD", *ask, "status"), None),
        (exec_command("CHILD", *ask, "hash"), None),
        (exec_command("CHILD", *programs.HASH_PROGRAM, cwd=programs.shared.PROGRAM), None),
        (exec_command("CHILD", *programs.APPLY, stdin=True), "patches/PATCH"),
        (exec_command("CHILD", *programs.SUITE, cwd=programs.shared.PROGRAM), None),
        (exec_command("CHILD", *ask, "replay", str(programs.REPLAY_ORDERS)), None),
        (exec_command("CHILD", *ask, "finish"), None),
        (exec_command("CHILD", "sha256sum", programs.shared.JOURNAL), None),
        (exec_command("CHILD", *ask, "status"), None),
    ]
    for command, stdin in steps:
        console.command(command, stdin)


def story(daemon: Daemon, console: Console) -> tuple[Measured, list[Checks]]:
    """The whole demonstration, without an opinion on it."""
    shown = set_up(daemon, console)
    quiet = replace(shown, show=False)
    floor = floor_of(quiet)
    before = look(shown, console)
    source = Checks(f"{shown.sandbox} (source)")
    check_start(source, before, programs.state_sha256())
    console.heading("Branch it while it runs, and try another fix in each child")
    stall.start(quiet)
    requested_unix = time.time()
    answer, outcomes, broken = branch(quiet, before, source, console)
    gaps = stall.result(quiet, requested_unix)
    console.note("and the same questions to the source again")
    after = facts(replace(quiet, clock_late_ms=quiet.clock_late_ms + answer["pause_ms"]))
    check_isolated(source, before, after)
    source.equal("the finished journal", quiet.finish_journal(), programs.journal_sha256())
    for name, measurement in (("floor", floor), ("branch", gaps)):
        source.equal(f"the meter runs at real-time priority ({name})", measurement.real_time, True)
        source.equal(f"the meter ran for its whole time ({name})", measurement.complete, True)
    measured = Measured(quiet.sandbox, before, after, answer, outcomes, gaps, floor)
    return measured, [source, *(outcome.checks for outcome in outcomes), *broken]


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
