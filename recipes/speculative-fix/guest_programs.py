"""The guest programs seen from the host: starting them, asking them, and what they must answer."""

import hashlib
import io
import json
import re
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli import CommandFailed, Forkd

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE / "guest"))

import shared  # noqa: E402 - the same file that the guest programs import

START_SECS = 600
REPLAY_ORDERS = 500
# `-S -E`: nothing of the installation is needed, and it starts sooner.
ASK = ("python3", "-SE", f"{shared.HOME}/guest/ask.py")
APPLY = ("python3", "-SE", f"{shared.HOME}/guest/apply_patch.py", shared.PROGRAM)
SUITE = ("python3", "-B", "-m", "unittest", "-q")
HASH_PROGRAM = ("sh", "-c", "find . -name '*.py' | sort | xargs sha256sum | sha256sum")


def archive(path: Path) -> None:
    """Writes the program and the guest programs as a tar file, without byte code."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if "__pycache__" in member.name:
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    with tarfile.open(path, "w") as tar:
        for folder in ("guest", "program"):
            tar.add(HERE / folder, folder, filter=kept)


def state_sha256() -> str:
    """The hash that the worker's state must have, computed here."""
    return hashlib.sha256(shared.build_state()).hexdigest()


def journal_bytes(lines: int) -> bytes:
    """The first `lines` lines of the journal."""
    content = io.BytesIO()
    for index in range(lines):
        content.write(shared.journal_line(index))
    return content.getvalue()


def journal_sha256() -> str:
    """The hash of the finished journal."""
    return hashlib.sha256(journal_bytes(shared.JOURNAL_LINES)).hexdigest()


def half_written() -> dict[str, Any]:
    """What the worker says of its journal before it is told to finish."""
    on_disk = len(journal_bytes(shared.JOURNAL_LINES_ON_DISK))
    lines = shared.JOURNAL_LINES_ON_DISK + shared.JOURNAL_LINES_BUFFERED
    buffered = len(journal_bytes(lines)) - on_disk
    return {"on_disk_bytes": on_disk, "buffered_bytes": buffered, "closed": False}


@dataclass(frozen=True)
class SuiteResult:
    """How many tests there are, and how many passed."""

    passed: int
    total: int

    def __str__(self) -> str:
        return f"{self.passed}/{self.total}"


@dataclass(frozen=True)
class Status:
    """The worker's answer, and when the host asked and heard it."""

    answer: dict[str, Any]
    asked_unix: float
    heard_unix: float
    clock_late_secs: float

    def __getitem__(self, key: str) -> Any:
        return self.answer[key]

    @property
    def clock_error_secs(self) -> float:
        """How far the guest's wall clock is outside the time in which it was read."""
        read: float = self.answer["unix_ns"] / 1e9
        return min(read - self.asked_unix, 0.0) + max(read - self.heard_unix, 0.0)


@dataclass(frozen=True)
class Guest:
    """One sandbox with the guest programs in it."""

    forkd: Forkd
    sandbox: str
    # How late its clock may be: it was told the time while it started, and a pause holds it.
    clock_late_ms: float
    show: bool = False

    def ask(self, *words: str) -> dict[str, Any]:
        """The answer of a guest program."""
        text = self.forkd.output(self.sandbox, *ASK, *words, show=self.show)
        answer: dict[str, Any] = json.loads(text)
        if "error" in answer:
            raise CommandFailed(f"{' '.join(words)} in {self.sandbox}: {answer['error']}")
        return answer

    def status(self) -> Status:
        """How far the worker has come."""
        asked = time.time()
        answer = self.ask("worker", "status")
        return Status(answer, asked, time.time(), self.clock_late_ms / 1000)

    def state_hash(self) -> str:
        """The hash of the worker's state."""
        return str(self.ask("worker", "hash")["sha256"])

    def replay(self) -> int:
        """Orders of the worker's state that the program on the disk divides wrongly."""
        return int(self.ask("worker", "replay", str(REPLAY_ORDERS))["wrong"])

    def finish_journal(self) -> str:
        """Has the worker write the rest; the hash of the file as another process reads it."""
        self.ask("worker", "finish")
        text = self.forkd.output(self.sandbox, "sha256sum", shared.JOURNAL, show=self.show)
        return text.split()[0]

    def program_hash(self) -> str:
        """One hash of all of the program's files."""
        options = {"cwd": shared.PROGRAM, "show": self.show}
        return self.forkd.output(self.sandbox, *HASH_PROGRAM, **options).split()[0]

    def apply(self, patch: Path) -> None:
        """Applies a patch to the program."""
        self.forkd.output(self.sandbox, *APPLY, stdin=patch.read_text(), show=self.show)

    def run_suite(self) -> SuiteResult:
        """Runs the program's tests."""
        result = self.forkd.exec(self.sandbox, *SUITE, cwd=shared.PROGRAM, show=self.show)
        ran = re.search(r"^Ran (\d+) tests", result.stderr, re.MULTILINE)
        if ran is None:
            raise CommandFailed(f"the suite did not run in {self.sandbox}\n{result.stderr}")
        counts = re.findall(r"(?:failures|errors)=(\d+)", result.stderr.splitlines()[-1])
        total = int(ran[1])
        return SuiteResult(total - sum(map(int, counts)), total)
