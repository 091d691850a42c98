"""Asks a guest program: `ask.py [--wait SECONDS] PROGRAM COMMAND [ARGUMENT]...`; prints its answer.

The answer is one line of JSON. With `--wait` the program may still be starting.
"""

import socket
import sys
import time

from shared import socket_path


def ask(name: str, command: str, wait_secs: float) -> bytes:
    """The answer of program `name`; raises `OSError` if it cannot be reached in time."""
    deadline = time.monotonic() + wait_secs
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(socket_path(name))
                link.sendall(command.encode() + b"\n")
                return b"".join(iter(lambda: link.recv(65536), b""))
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)


def main(arguments: list[str]) -> int:
    wait_secs = 0.0
    if arguments[:1] == ["--wait"]:
        wait_secs = float(arguments[1])
        arguments = arguments[2:]
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    answer = ask(arguments[0], " ".join(arguments[1:]), wait_secs)
    sys.stdout.write(answer.decode())
    return 0 if answer else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
