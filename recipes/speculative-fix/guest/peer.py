"""The other end of the worker's TCP connection: answers each request that is next in sequence.

Request `NUMBER\n`; answer `NUMBER DIGEST PID ERRORS\n`, where the digest covers all numbers so far. A
number out of sequence is counted as an error and does not enter the digest.
"""

import os
import socket

from exchange import Digest

PORT_FILE = "peer.port"


def serve(listener: socket.socket) -> None:
    """Talks to one worker after the other."""
    while True:
        link, _ = listener.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        digest, errors = Digest(), 0
        with link, link.makefile("rb") as requests:
            for line in requests:
                number = int(line)
                if number == digest.count + 1:
                    digest.add(number)
                else:
                    errors += 1
                answer = f"{digest.count} {digest.text()} {os.getpid()} {errors}\n"
                link.sendall(answer.encode())


def main() -> None:
    from shared import RUN

    os.makedirs(RUN, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        temporary = f"{RUN}/{PORT_FILE}.new"
        with open(temporary, "w", encoding="ascii") as file:
            file.write(str(port))
        os.rename(temporary, f"{RUN}/{PORT_FILE}")
        serve(listener)


if __name__ == "__main__":
    main()
