"""Applies a unified diff: `apply_patch.py DIRECTORY < PATCH`; prints the files that it changed.

Strict: every context line must be where the patch says, or nothing at all is changed.
"""

import re
import sys
from pathlib import Path

HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


class Refused(Exception):
    """The patch is not one, or does not fit."""


def patched(lines: list[str], name: str, hunks: list[tuple[int, list[str]]]) -> list[str]:
    """`lines` after all hunks; each is a line number, from 1, and its marked lines."""
    result: list[str] = []
    done = 0
    for start, marked in hunks:
        result += lines[done : start - 1]
        done = start - 1
        for line in marked:
            mark, text = line[:1], line[1:]
            if mark == "+":
                result.append(text)
                continue
            if mark not in (" ", "-") or lines[done : done + 1] != [text]:
                raise Refused(f"{name}:{done + 1} is not as the patch expects")
            done += 1
            if mark == " ":
                result.append(text)
    return result + lines[done:]


def read(patch: list[str]) -> dict[str, list[tuple[int, list[str]]]]:
    """Hunks by file name."""
    files: dict[str, list[tuple[int, list[str]]]] = {}
    hunks: list[tuple[int, list[str]]] = []
    for line in patch:
        if line.startswith("+++ b/"):
            hunks = files.setdefault(line[6:].rstrip("\n"), [])
        elif match := HUNK.match(line):
            hunks.append((int(match[1]), []))
        elif hunks and not line.startswith("--- a/"):
            hunks[-1][1].append(line)
    if not any(files.values()):
        raise Refused("no hunk found")
    return files


def main(directory: str) -> int:
    changes = {}
    for name, hunks in read(sys.stdin.readlines()).items():
        path = Path(directory, name)
        changes[path] = patched(path.read_text().splitlines(keepends=True), name, hunks)
    for path, lines in changes.items():
        path.write_text("".join(lines))
        print(path)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except Refused as error:
        sys.exit(f"error: {error}")
