"""A conversation over TCP in which both sides notice a lost, repeated or foreign message.

A request is the line `NUMBER`, counting from 1; an answer `NUMBER DIGEST PID ERRORS`. The digest
covers all numbers so far, so that one side cannot have another history than the other. ERRORS
counts the requests that were out of sequence for the answering side.
"""

import os
import socket
import time
import zlib

ADDRESS = ("127.0.0.1", 7411)
ANSWER_TIMEOUT_SECS = 60


class History:
    """How many numbers there were, and a digest of all of them."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = 0

    def add(self, number: int) -> None:
        self._digest = zlib.crc32(b"%d," % number, self._digest)
        self.count = number

    def text(self) -> str:
        return f"{self.count} {self._digest:08x}"


def answer_requests(link: socket.socket) -> None:
    """The answering side, until the other one hangs up."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    history, errors = History(), 0
    with link.makefile("rb") as requests:
        for line in requests:
            number = int(line)
            if number == history.count + 1:
                history.add(number)
            else:
                errors += 1
            link.sendall(f"{history.text()} {os.getpid()} {errors}\n".encode())


class Conversation:
    """The asking side."""

    def __init__(self, wait_secs: float) -> None:
        self.history = History()
        self.peer_pid = 0
        self.peer_errors = 0
        self.errors = 0
        deadline = time.monotonic() + wait_secs
        while True:
            try:
                self._link = socket.create_connection(ADDRESS, ANSWER_TIMEOUT_SECS)
                break
            except ConnectionRefusedError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._link.makefile("rb")

    def exchange(self) -> None:
        """One request and its answer; an answer that is not the expected one is an error."""
        self.history.add(self.history.count + 1)
        self._link.sendall(b"%d\n" % self.history.count)
        *said, pid, errors = self._answers.readline().decode().split()
        if " ".join(said) != self.history.text():
            self.errors += 1
        self.peer_pid, self.peer_errors = int(pid), int(errors)
