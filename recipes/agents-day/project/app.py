"""A web app with data in its memory: it finds the words that resemble one that is spelled wrongly.

`/suggest?word=speling` gives the best match as JSON, by the package `spelling`. `/visits` tells how
many requests this process has answered, and the version of the package. `/reload` takes the package
that is installed now, without a stop.
"""

import importlib
import itertools
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import spelling  # type: ignore[import-not-found]

WORDS = Path(__file__).with_name("words.txt").read_text().split()
visits = itertools.count(1)


def answer(path: str, query: dict[str, list[str]]) -> dict[str, object]:
    """What is said to a request."""
    visit = next(visits)
    if path == "/reload":
        importlib.invalidate_caches()
        importlib.reload(spelling)
    if path == "/suggest":
        wrong = query.get("word", [""])[0]
        return {"best": min(WORDS, key=lambda word: spelling.distance(wrong, word))}
    return {"visits": visit, "version": spelling.VERSION}


class App(BaseHTTPRequestHandler):
    """Answers requests."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Says it as JSON."""
        url = urlsplit(self.path)
        body = json.dumps(answer(url.path, parse_qs(url.query))).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Is silent."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8080), App).serve_forever()
