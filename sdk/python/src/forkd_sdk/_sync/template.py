# Generated from _async/template.py by sdk/python/scripts/generate.py. Do not edit.
"""Templates that are built from steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from .._core import building, request
from .._core.building import BuildStep
from .._core.recipe import Command, Ready, Recipe
from .client import Client, transport_of_environment
from .program import follow
from .sandbox import Snapshot


class Build:
    """What a build made."""

    def __init__(self, snapshot: Snapshot, steps: list[BuildStep], ms: float) -> None:
        self.snapshot = snapshot
        """What sandboxes are started from."""
        self.steps = steps
        """All steps, in order."""
        self.ms = ms
        """How long it took."""

    @property
    def tag(self) -> str:
        """The tag of the snapshot."""
        return self.snapshot.tag

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.tag}, {len(self.steps)} steps>"


class Template:
    """A template as steps, in the words of `forkd.toml`: begin with `from_snapshot` or
    `from_image`, and end with `build`.

    Each step gives a new template and leaves this one as it is, so that several may begin alike.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    @classmethod
    def from_snapshot(cls, name: str) -> Template:
        """Begins with a snapshot; or with an image of forkd, of which a template is made."""
        return cls(Recipe.from_snapshot(name))

    @classmethod
    def from_image(
        cls, reference: str, *, mem_size_mib: int | None = None, vcpus: int | None = None
    ) -> Template:
        """Begins with an OCI image, such as `python:3.12-slim`. For admins."""
        return cls(Recipe.from_image(reference, mem_size_mib, vcpus))

    def run(self, command: Command) -> Template:
        """Runs a command to its end. Any exit code but 0 ends the build.

        `/bin/sh` runs a string. A list is a program and its arguments.
        """
        return Template(self._recipe.run(command))

    def copy(
        self,
        sources: str | Sequence[str],
        to: str,
        *,
        owner: str | None = None,
        mode: int | None = None,
    ) -> Template:
        """Copies files and directories of the context, as `COPY` of a Dockerfile does.

        Of a directory, what is in it goes. `owner` is `USER` or `USER:GROUP`; `mode` are permission
        bits, by default those in the context.
        """
        return Template(self._recipe.copy(sources, to, owner, mode))

    def env(self, variables: Mapping[str, str]) -> Template:
        """Sets variables of the steps that follow."""
        return Template(self._recipe.env(variables))

    def workdir(self, path: str) -> Template:
        """Sets the directory of the steps that follow."""
        return Template(self._recipe.workdir(path))

    def user(self, name: str) -> Template:
        """Sets the user of the steps that follow."""
        return Template(self._recipe.user(name))

    def start(self, command: Command, *, ready: Ready | None = None) -> Template:
        """Starts a process that runs on, in every sandbox of the template.

        With `ready`, which is `port(8000)` or `command("...")`, the step is done when the process
        is ready.
        """
        return Template(self._recipe.start(command, ready))

    @property
    def recipe(self) -> str:
        """The text of a `forkd.toml` with the same steps."""
        return str(self._recipe)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self._recipe.head.strip()}, {len(self._recipe.steps)} steps>"
        )

    def build(
        self,
        tag: str | None = None,
        *,
        context: str | os.PathLike[str] = ".",
        from_snapshot: str | None = None,
        no_cache: bool = False,
        keep: bool = False,
        on_step: Callable[[BuildStep], object] | None = None,
        program: str | None = None,
        client: Client | None = None,
    ) -> Build:
        """Builds it: runs the steps that no earlier build has run, and freezes the result as `tag`.

        Files are copied from the directory `context`. It begins with `from_snapshot`, if that is
        given, in place of its own. With `no_cache` all steps are run; with `keep` the sandbox of a
        step that fails stays. `on_step` is called when a step begins and when it is over.

        The command line does all that: its program is `program`, else the one that `FORKD_BIN`
        names, else `forkd`. A build that is cancelled ends in order and leaves no sandbox.

        Raises `BuildFailedError` if a step fails, and `ProgramMissingError` without that program.
        """
        transport = transport_of_environment() if client is None else client._transport
        way = transport.way
        command = [
            building.program_of(program, os.environ),
            *building.arguments(
                tag, context=context, from_snapshot=from_snapshot, no_cache=no_cache, keep=keep
            ),
        ]
        watch = building.Watch()

        def on_line(line: bytes) -> None:
            step = watch.take(line)
            if step is not None and on_step is not None:
                on_step(step)

        environment = building.environment(os.environ, way.target, way.token, way.ca_cert)
        exit_code, said = follow(
            command, environment=environment, text=self.recipe, on_line=on_line
        )
        built = watch.end(exit_code, said)
        info = transport.send(request.snapshot_info(built.tag))
        return Build(Snapshot(transport, info), watch.steps, built.ms)
