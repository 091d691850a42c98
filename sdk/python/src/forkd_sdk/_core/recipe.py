"""A `forkd.toml`, step by step, as text. Pure.

What it may say, and what it means, is known to `forkd build` alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .failure import ForkdError

Command = str | Sequence[str]

READY_SECS = 60


@dataclass(frozen=True)
class Ready:
    """When a process that a template starts is ready: see `port` and `command`."""

    check: str
    """As `forkd.toml` writes it."""
    timeout_secs: int
    """How long that may take."""

    def __str__(self) -> str:
        return f"{{ {self.check}, timeout_secs = {self.timeout_secs} }}"


def port(number: int, *, timeout: float = READY_SECS) -> Ready:
    """The process is ready when something listens on this port; it has `timeout` seconds."""
    return Ready(f"port = {number:d}", math.ceil(timeout))


def command(command: Command, *, timeout: float = READY_SECS) -> Ready:
    """The process is ready when this command succeeds; it has `timeout` seconds.

    `/bin/sh` runs a string. A list is a program and its arguments.
    """
    return Ready(f"command = {_words(command)}", math.ceil(timeout))


@dataclass(frozen=True)
class Recipe:
    """What a build begins with, and its steps. Each method gives a new one."""

    head: str
    """The lines before the first step."""
    steps: tuple[str, ...] = ()
    """The lines of each step."""

    @classmethod
    def from_snapshot(cls, name: str) -> Recipe:
        """Begins with a snapshot, or with an image of forkd."""
        return cls(f"from = {_text(name)}\n")

    @classmethod
    def from_image(cls, reference: str, mem_size_mib: int | None, vcpus: int | None) -> Recipe:
        """Begins with an OCI image."""
        head = f"from_image = {_text(reference)}\n"
        if mem_size_mib is not None:
            head += f"mem_size_mib = {mem_size_mib:d}\n"
        if vcpus is not None:
            head += f"vcpus = {vcpus:d}\n"
        return cls(head)

    def run(self, command: Command) -> Recipe:
        """Runs a program to its end."""
        return self._and(f"run = {_words(command)}")

    def copy(
        self, sources: str | Sequence[str], to: str, owner: str | None, mode: int | None
    ) -> Recipe:
        """Copies files of the context."""
        lines = [f"copy = {_words(sources)}", f"to = {_text(to)}"]
        if owner is not None:
            lines.append(f"owner = {_text(owner)}")
        if mode is not None:
            lines.append(f'mode = "{mode:04o}"')
        return self._and(*lines)

    def env(self, variables: Mapping[str, str]) -> Recipe:
        """Sets variables of later steps."""
        pairs = [f"{_text(name)} = {_text(value)}" for name, value in variables.items()]
        return self._and(f"env = {{ {', '.join(pairs)} }}")

    def workdir(self, path: str) -> Recipe:
        """Sets the directory of later steps."""
        return self._and(f"workdir = {_text(path)}")

    def user(self, name: str) -> Recipe:
        """Sets the user of later steps."""
        return self._and(f"user = {_text(name)}")

    def start(self, command: Command, ready: Ready | None) -> Recipe:
        """Starts a process that goes on."""
        lines = [f"start = {_words(command)}"]
        if ready is not None:
            lines.append(f"ready = {ready}")
        return self._and(*lines)

    def __str__(self) -> str:
        return "".join([self.head, *self.steps])

    def _and(self, *lines: str) -> Recipe:
        step = "".join(f"{line}\n" for line in ("", "[[step]]", *lines))
        return Recipe(self.head, (*self.steps, step))


def _text(text: str) -> str:
    """A string of TOML: one of JSON, but for DEL and for halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ForkdError(
            f"{text!r} is not Unicode",
            hint="a template has text only; put other bytes into a file, and copy it",
        ) from error
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _words(words: Command) -> str:
    if isinstance(words, str):
        return _text(words)
    return f"[{', '.join(map(_text, words))}]"
