"""What people read: headings, commands as they are typed, and tables."""

import os
import shlex
import sys
from collections.abc import Sequence


class Console:
    """Writes to standard output, in colour only on a terminal and without `NO_COLOR`."""

    def __init__(self) -> None:
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def heading(self, text: str) -> None:
        self._line("")
        self._line(self._paint("1", text))

    def command(self, arguments: Sequence[str], stdin: str | None = None) -> None:
        """One `forkd` command; `stdin` is the name of the file that it reads."""
        words = " ".join(map(quoted, ["forkd", *arguments]))
        tail = f" < {stdin}" if stdin else ""
        self._line(f"  {self._paint('36', f'$ {words}{tail}')}")

    def note(self, text: str) -> None:
        self._line(f"    {text}")

    def failure(self, text: str) -> None:
        self._line(f"  {self._paint('1;31', 'failed:')} {text}")

    def success(self, text: str) -> None:
        self._line(f"  {self._paint('1;32', 'ok:')} {text}")

    def table(
        self, head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
    ) -> None:
        """Columns as wide as their longest cell; those named in `right` end at the same place."""
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        for index, row in enumerate([head, *rows]):
            cells = (
                cell.rjust(width) if name in right else cell.ljust(width)
                for name, cell, width in zip(head, row, widths, strict=True)
            )
            text = "  ".join(cells).rstrip()
            self._line("  " + (self._paint("1", text) if index == 0 else text))

    def plain(self, text: str) -> None:
        self._line(text)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    @staticmethod
    def _line(text: str) -> None:
        print(text, flush=True)


def quoted(word: str) -> str:
    """`word` as it is typed in a shell, in the quotation marks that read best."""
    if "'" in word and not set(word) & set('"$`\\!'):
        return f'"{word}"'
    return shlex.quote(word)
