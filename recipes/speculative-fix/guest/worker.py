"""The program that is branched: warm state, a counter, a TCP connection, a half-written file.

Everything that it holds is in this one process: 50 MiB of computed orders in memory, the imported
package `payouts`, a journal of which part is on the disk and part in the file object's buffer, and
the asking end of a conversation with the peer. Commands over its control socket (see `ask.py`):

* `status`: what it is and how far it has come;
* `hash`: SHA-256 of the state;
* `replay N`: loads the package's code anew and divides N orders of the state with it;
* `finish`: writes the rest of the journal and closes it.
"""

import hashlib
import importlib
import os
import socket
import sys
import threading
import time

import control
import shared
from exchange import Conversation

sys.path.insert(0, shared.PROGRAM)
sys.dont_write_bytecode = True

import payouts.split  # noqa: E402 - the place of the program is known only now

# Larger than what the journal holds back, so that nothing is written before it is told to.
BUFFER_BYTES = 1 << 20
# Between two messages; the machine is shared with the children.
STEP_SECS = 0.02
RECORD_BYTES = 8


def read_order(state: bytearray, index: int) -> tuple[int, list[int]]:
    """Total and weights of one order."""
    record = state[index * RECORD_BYTES : (index + 1) * RECORD_BYTES]
    sellers = 2 + record[3] % 4
    weights = [1 + byte % 9 for byte in record[3 : 3 + sellers]]
    return int.from_bytes(record[:3], "little") % 500_000, weights


class Journal:
    """A file written to the middle: the first part is forced to the disk, the next one buffered."""

    def __init__(self) -> None:
        self.file = open(shared.JOURNAL, "wb", buffering=BUFFER_BYTES)
        self.lines = 0
        self.bytes = 0
        self.write_until(shared.JOURNAL_LINES_ON_DISK)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.write_until(self.lines + shared.JOURNAL_LINES_BUFFERED)

    def write_until(self, lines: int) -> None:
        for index in range(self.lines, lines):
            self.bytes += self.file.write(shared.journal_line(index))
        self.lines = lines

    def finish(self) -> None:
        self.write_until(shared.JOURNAL_LINES)
        self.file.close()

    def status(self) -> dict:
        on_disk = os.stat(shared.JOURNAL).st_size
        buffered = self.bytes - on_disk
        return {"on_disk_bytes": on_disk, "buffered_bytes": buffered, "closed": self.file.closed}


class Worker:
    """The state, and what is told of it."""

    def __init__(self) -> None:
        self.state = shared.build_state()
        self.journal = Journal()
        self.conversation = Conversation(wait_secs=60)
        self.counter = 0

    def run(self) -> None:
        """Counts and talks, for ever."""
        while True:
            self.conversation.exchange()
            self.counter += 1
            time.sleep(STEP_SECS)

    def answer(self, words: list[str]) -> dict:
        match words:
            case ["status"]:
                return self.status()
            case ["ready"]:
                return {}
            case ["hash"]:
                return {"sha256": hashlib.sha256(self.state).hexdigest()}
            case ["replay", count]:
                return self.replay(int(count))
            case ["finish"]:
                self.journal.finish()
                return self.journal.status()
        raise ValueError(f"no such command: {' '.join(words)}")

    def status(self) -> dict:
        with open("/proc/self/stat", encoding="ascii") as file:
            started_ticks = int(file.read().rpartition(")")[2].split()[19])
        talk = self.conversation
        return {
            "pid": os.getpid(),
            "started_ticks": started_ticks,
            "counter": self.counter,
            "exchanges": talk.history.count,
            "sequence_errors": talk.errors + talk.peer_errors,
            "peer_pid": talk.peer_pid,
            "journal": self.journal.status(),
            "hostname": socket.gethostname(),
            "random": os.urandom(16).hex(),
            "unix_ns": time.time_ns(),
        }

    def replay(self, count: int) -> dict:
        """Orders that the code now on the disk divides wrongly."""
        split = importlib.reload(payouts.split).split
        wrong = 0
        for index in range(count):
            total, weights = read_order(self.state, index)
            parts, whole = split(total, weights), sum(weights)
            fair = all(
                abs(part * whole - total * weight) < whole
                for part, weight in zip(parts, weights, strict=True)
            )
            wrong += not fair or sum(parts) != total
        return {"orders": count, "wrong": wrong}


def main() -> None:
    worker = Worker()
    listener = control.listen("worker")
    serve = threading.Thread(target=control.serve, args=(listener, worker.answer), daemon=True)
    serve.start()
    worker.run()


if __name__ == "__main__":
    main()
