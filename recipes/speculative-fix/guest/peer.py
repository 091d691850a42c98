"""The other end of the worker's TCP connection: answers each request that is next in sequence."""

import socket

from exchange import ADDRESS, answer_requests


def main() -> None:
    with socket.create_server(ADDRESS) as listener:
        while True:
            link, _ = listener.accept()
            with link:
                answer_requests(link)


if __name__ == "__main__":
    main()
