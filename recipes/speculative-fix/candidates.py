"""The candidate fixes, and what becomes of a child that gets one."""

import time
from dataclasses import dataclass
from pathlib import Path

import guest_programs as programs
from checks import Checks
from guest_programs import Guest, Status, SuiteResult

PATCHES = Path(__file__).resolve().parent / "patches"


@dataclass(frozen=True)
class Candidate:
    """A patch, and how many tests pass with it."""

    name: str
    tests_passed: int

    @property
    def patch(self) -> Path:
        return PATCHES / f"{self.name}.patch"


CANDIDATES = (
    Candidate("largest-remainder", tests_passed=14),
    Candidate("rest-to-the-last", tests_passed=12),
    Candidate("round-each-part", tests_passed=9),
)
UNPATCHED = SuiteResult(passed=10, total=14)


@dataclass(frozen=True)
class Facts:
    """What is known of a source, before it is branched or after."""

    status: Status
    state_hash: str
    program_hash: str
    suite: SuiteResult
    replay_wrong: int


@dataclass
class Outcome:
    """What one child came to."""

    sandbox: str
    candidate: Candidate
    checks: Checks
    first_answer_ms: float
    first: Status
    last: Status
    state_hash: str
    suite: SuiteResult
    replay_wrong: int
    journal_ok: bool


def facts(guest: Guest) -> Facts:
    """Asks a source for everything that a branch must keep; how far it is comes last."""
    state_hash, program_hash = guest.state_hash(), guest.program_hash()
    suite, replay_wrong = guest.run_suite(), guest.replay()
    return Facts(guest.status(), state_hash, program_hash, suite, replay_wrong)


def try_out(guest: Guest, candidate: Candidate, before: Facts, requested: float) -> Outcome:
    """Applies the patch in a child and tells what came of it; `requested` is by `monotonic`."""
    first = guest.status()
    first_answer_ms = (time.monotonic() - requested) * 1000
    checks = Checks(f"{guest.sandbox} ({candidate.name})")
    check_inherited(checks, first, before.status)
    state_hash = guest.state_hash()
    checks.equal("the inherited memory", state_hash, before.state_hash)
    checks.equal("the program before the patch", guest.program_hash(), before.program_hash)
    guest.apply(candidate.patch)
    suite, replay_wrong = guest.run_suite(), guest.replay()
    checks.equal("tests passed", suite, SuiteResult(candidate.tests_passed, UNPATCHED.total))
    right = candidate.tests_passed == UNPATCHED.total
    checks.equal("the replay divides all orders well", replay_wrong == 0, right)
    journal_hash = guest.finish_journal()
    checks.equal("the finished journal", journal_hash, programs.journal_sha256())
    last = guest.status()
    check_going_on(checks, last, first)
    journal_ok = journal_hash == programs.journal_sha256()
    return Outcome(
        guest.sandbox, candidate, checks, first_answer_ms, first, last, state_hash, suite,
        replay_wrong, journal_ok,
    )  # fmt: skip


def check_inherited(checks: Checks, first: Status, source: Status) -> None:
    """The child's worker is the source's worker, and nothing that it had is lost."""
    process = ("pid", "started_ticks", "peer_pid")
    checks.equal("the process", [first[k] for k in process], [source[k] for k in process])
    wanted = f"at least {source['counter']}"
    checks.holds(
        "the inherited counter", first["counter"] >= source["counter"], first["counter"], wanted
    )
    checks.equal("the half-written file", first["journal"], programs.half_written())
    checks.equal("host name", first["hostname"], checks.subject.split()[0])
    check_clock(checks, first)
    check_sequence(checks, first)


def check_going_on(checks: Checks, last: Status, earlier: Status) -> None:
    """The worker and its peer work on, in sequence."""
    for key in ("counter", "exchanges"):
        claim, wanted = f"{key} since the first answer", f"more than {earlier[key]}"
        checks.holds(claim, last[key] > earlier[key], last[key], wanted)
    checks.equal("the process", last["pid"], earlier["pid"])
    check_clock(checks, last)
    check_sequence(checks, last)


def check_sequence(checks: Checks, status: Status) -> None:
    """Neither side of the TCP connection saw a number twice, late or never."""
    checks.equal("messages out of sequence", status["sequence_errors"], 0)
    # The worker counts when the answer is there, and can be asked in between.
    open_requests = status["exchanges"] - status["counter"]
    checks.holds("requests without an answer", open_requests in (0, 1), open_requests, "0 or 1")


def check_clock(checks: Checks, status: Status) -> None:
    """The wall clock is the host's: told while the sandbox started, and late by no more."""
    error, late = status.clock_error_secs, status.clock_late_secs
    checks.holds("clock error", abs(error) <= late, f"{error:+.3f} s", f"at most {late:.3f} s")


def check_start(checks: Checks, before: Facts, state_sha256: str) -> None:
    """The source is as it must be before the branch."""
    checks.equal("the computed memory", before.state_hash, state_sha256)
    checks.equal("the half-written file", before.status["journal"], programs.half_written())
    checks.equal("tests passed", before.suite, UNPATCHED)
    checks.holds("orders divided wrongly", before.replay_wrong > 0, before.replay_wrong, "some")
    check_sequence(checks, before.status)
    check_clock(checks, before.status)


def check_isolated(checks: Checks, before: Facts, after: Facts) -> None:
    """The source saw nothing of what its children did."""
    checks.equal("the program's files", after.program_hash, before.program_hash)
    checks.equal("the memory", after.state_hash, before.state_hash)
    checks.equal("tests passed", after.suite, before.suite)
    checks.equal("orders divided wrongly", after.replay_wrong, before.replay_wrong)
    checks.equal("the half-written file", after.status["journal"], before.status["journal"])
    check_going_on(checks, after.status, before.status)


def check_distinct(outcomes: list[Outcome]) -> None:
    """No two children draw the same random bytes."""
    drawn = [outcome.first["random"] for outcome in outcomes]
    for outcome in outcomes:
        checks, mine = outcome.checks, outcome.first["random"]
        checks.holds("random bytes", drawn.count(mine) == 1, mine, "bytes that no other child drew")
