"""The control socket of a guest program: one command a connection, one line of JSON back."""

import json
import os
import socket
from collections.abc import Callable

from shared import RUN, socket_path

# A command is one short line.
COMMAND_BYTES_MAX = 4096


def listen(name: str) -> socket.socket:
    """Opens the socket; programs do so when they are ready, so that waiting for it is enough."""
    os.makedirs(RUN, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(socket_path(name))
    listener.listen(16)
    return listener


def serve(
    listener: socket.socket,
    answer: Callable[[list[str]], dict],
    after: Callable[[], None] = lambda: None,
) -> None:
    """Answers one command after the other, for ever, and calls `after` when each has its answer.

    What goes wrong is told to who asked.
    """
    while True:
        link, _ = listener.accept()
        with link:
            words = link.makefile("rb").readline(COMMAND_BYTES_MAX).decode().split()
            try:
                reply = answer(words)
            except Exception as error:  # The asker is told, whatever it was.
                reply = {"error": f"{type(error).__name__}: {error}"}
            try:
                link.sendall(json.dumps(reply).encode() + b"\n")
            except OSError:
                pass  # Who asked is gone; others are not.
        after()
