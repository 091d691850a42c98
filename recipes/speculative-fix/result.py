"""The result for people, as tables, and for programs, as one line of JSON."""

import json
from dataclasses import dataclass
from typing import Any

import guest_programs as programs
from candidates import UNPATCHED, Facts, Outcome
from console import Console
from guest_programs import Status
from stall import AFTER_MS, Stall

MARK = "FORKD_DEMO"
WINDOW = ("pause", "save_device_state", "freeze_disk", "protect", "resume")
ORDER = ("prepare", *WINDOW, "sweep", "seal", "publish")
HASH_CHARS = 8


@dataclass(frozen=True)
class Measured:
    """Everything that one run found."""

    source: str
    before: Facts
    after: Facts
    branch: dict[str, Any]
    outcomes: list[Outcome]
    stall: Stall
    floor: Stall

    @property
    def children_ok(self) -> int:
        return sum(outcome.checks.ok for outcome in self.outcomes)

    def machine_line(self) -> str:
        """The last line of the output."""
        return f"{MARK} " + json.dumps(
            {
                "children": len(self.branch["children"]),
                "children_ok": self.children_ok,
                "pause_ms": round(self.branch["pause_ms"], 3),
                "phases_ms": {k: round(v, 3) for k, v in self.branch["phases_ms"].items()},
                "ready_ms": round(self.branch["ready_ms"], 3),
                "first_answer_ms": {
                    outcome.candidate.name: round(outcome.first_answer_ms, 1)
                    for outcome in self.outcomes
                },
                "guest_gap_ms": self.stall.longest_ms(),
                "guest_gap_floor_ms": self.floor.longest_ms(),
                "guest_gap_until_ready_ms": self.stall.longest_ms(self.branch["ready_ms"]),
                "guest_gap_until_ready_floor_ms": self.floor.longest_ms(self.branch["ready_ms"]),
                "dirty_mib": round(self.branch["dirty_bytes"] / (1 << 20), 1),
            }
        )


def show(console: Console, measured: Measured) -> None:
    """All tables."""
    console.heading("What became of the children")
    show_fixes(console, measured)
    console.heading("What they inherited, and that it lives")
    show_inheritance(console, measured)
    console.heading("What the branch cost")
    show_cost(console, measured)


def show_fixes(console: Console, measured: Measured) -> None:
    head = ("sandbox", "patch", "tests", "orders wrong", "verdict")
    orders = programs.REPLAY_ORDERS
    rows = [
        (
            outcome.sandbox,
            outcome.candidate.name,
            str(outcome.suite),
            f"{outcome.replay_wrong}/{orders}",
            verdict(outcome),
        )
        for outcome in measured.outcomes
    ]
    after = measured.after
    rows.append(
        (
            measured.source,
            "(source)",
            str(after.suite),
            f"{after.replay_wrong}/{orders}",
            "as before" if is_untouched(measured) else "CHANGED",
        )
    )
    console.table(head, rows)


def is_untouched(measured: Measured) -> bool:
    """Whether the source's program is what it was."""
    before, after = measured.before, measured.after
    return (after.program_hash, after.suite) == (before.program_hash, before.suite)


def verdict(outcome: Outcome) -> str:
    """The outcome in a word."""
    if outcome.suite.passed == outcome.suite.total:
        return "fixed"
    return "better" if outcome.suite.passed > UNPATCHED.passed else "worse"


def show_inheritance(console: Console, measured: Measured) -> None:
    counter = measured.before.status["counter"]
    head = ("sandbox", "50 MiB", "counter", "messages over TCP", "open file", "clock error")
    source_hash = measured.before.state_hash
    rows = [
        (
            outcome.sandbox,
            outcome.state_hash[:HASH_CHARS] + equal_sign(outcome.state_hash == source_hash),
            f"{outcome.first['counter']} -> {outcome.last['counter']}",
            talk(outcome.last),
            "continuous" if outcome.journal_ok else "damaged",
            f"{outcome.last.clock_error_secs:+.3f} s",
        )
        for outcome in measured.outcomes
    ]
    after = measured.after
    rows.append(
        (
            f"{measured.source} (source)",
            after.state_hash[:HASH_CHARS] + equal_sign(after.state_hash == source_hash),
            f"{counter} -> {after.status['counter']}",
            talk(after.status),
            "half written",
            f"{after.status.clock_error_secs:+.3f} s",
        )
    )
    console.table(head, rows)


def equal_sign(is_equal: bool) -> str:
    return " same" if is_equal else " OTHER"


def talk(status: Status) -> str:
    errors = status["sequence_errors"]
    told = "in sequence" if errors == 0 else f"with {errors} errors"
    return f"{status['exchanges']} {told}"


def show_cost(console: Console, measured: Measured) -> None:
    branch, phases = measured.branch, measured.branch["phases_ms"]
    names = [name for name in ORDER if name in phases]
    names += sorted(set(phases) - set(names))
    rows = [(name, f"{phases[name]:.3f}", "paused" if name in WINDOW else "runs") for name in names]
    console.table(("phase", "ms", "guest"), rows, right=("ms",))
    console.plain("")
    answers = ", ".join(f"{outcome.first_answer_ms:.0f}" for outcome in measured.outcomes)
    answers = f"{answers} ms after the request"
    figures = [
        ("pause", f"{branch['pause_ms']:.2f} ms"),
        ("ready", f"{branch['ready_ms']:.1f} ms after the request"),
        ("first answer of each child", answers),
        ("dirty memory", f"{branch['dirty_bytes'] / (1 << 20):.1f} MiB"),
        ("longest guest stall until ready", stalls(measured, branch["ready_ms"])),
        ("longest guest stall in the first second", stalls(measured, AFTER_MS)),
    ]
    console.table(("figure", "value"), figures)


def stalls(measured: Measured, until_ms: float) -> str:
    """The longest gap in the source, and the same without a branch."""
    both = (measured.stall.longest_ms(until_ms), measured.floor.longest_ms(until_ms))
    longest, floor = (shown(gap) for gap in both)
    return f"{longest}; without a branch {floor}"


def shown(gap_ms: float | None) -> str:
    """A gap as people read it."""
    if gap_ms is None:
        return "not measured, the host was too busy"
    return f"{gap_ms:.2f} ms" if gap_ms else "below 0.5 ms"
