"""`forkd build` as a program: what it is called with, and what its lines mean. Pure.

The command line plans builds, and does so for everybody: that is why a step that one of them has
done is there for all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .. import models
from .call import error_of_body
from .decode import decode
from .failure import (
    BuildFailedError,
    ForkdError,
    NotUnderstoodError,
    ProgramMissingError,
    UnreachableError,
)
from .target import Target

StepStatus: TypeAlias = Literal["running", "cached", "done"]

# Names the program in place of the one in `PATH`.
PROGRAM_VARIABLE = "FORKD_BIN"

EXIT_UNREACHABLE = 3

# Of what the program says beside its events, if it ends without the last one.
SAID_CHARS = 2000


@dataclass(frozen=True, kw_only=True)
class BuildStep:
    """A step of a build."""

    number: int
    """Counted from 1."""
    of: int
    """How many steps there are."""
    step: str
    """The step in one line."""
    status: StepStatus | str
    """`running`, `done`, or `cached` if it was not necessary to run it."""
    ms: float
    """How long it took, until it is a snapshot; 0 before that."""
    snapshot_tag: str | None = None
    """The snapshot after it; None for a step that has none."""

    @property
    def cached(self) -> bool:
        """Whether an earlier build had run it."""
        return self.status == "cached"


@dataclass(frozen=True, kw_only=True)
class Built:
    """The end of a build that has succeeded."""

    tag: str
    ms: float


@dataclass(frozen=True, kw_only=True)
class _Failed:
    """The end of a build that has failed."""

    message: str
    hint: str | None = None
    code: str | None = None
    number: int | None = None
    step: str | None = None
    exit_code: int | None = None
    output: str | None = None
    sandbox_id: str | None = None


def program_of(named: str | None, environment: Mapping[str, str]) -> str:
    """The program that builds."""
    return named or environment.get(PROGRAM_VARIABLE) or "forkd"


def arguments(
    tag: str | None,
    *,
    context: str | os.PathLike[str],
    from_snapshot: str | None,
    no_cache: bool,
    keep: bool,
) -> list[str]:
    """What the program is called with. The recipe comes on standard input."""
    found = ["build", "--events", "--file=-"]
    if tag is not None:
        found.append(f"--tag={tag}")
    if from_snapshot is not None:
        found.append(f"--from={from_snapshot}")
    found += ["--no-cache"] * no_cache + ["--keep"] * keep
    return [*found, "--", os.fspath(context)]


def environment(
    own: Mapping[str, str], target: Target, token: str | None, ca_cert: str | None
) -> dict[str, str]:
    """Our own variables, with those that lead to the daemon. Others can read arguments, but not
    these: a token is among them.
    """
    daemon = {
        "FORKD_URL": target.url,
        "FORKD_SOCKET": target.socket,
        "FORKD_TOKEN": token,
        "FORKD_CA_CERT": ca_cert,
    }
    found = {name: value for name, value in own.items() if name not in daemon}
    return found | {name: value for name, value in daemon.items() if value}


class Watch:
    """Reads the events of a build, and knows in the end what became of it."""

    def __init__(self) -> None:
        self.steps: list[BuildStep] = []
        """Those that are over."""
        self._built: Built | None = None
        self._failed: _Failed | None = None

    def take(self, line: bytes) -> BuildStep | None:
        """Reads a line; gives the step that it tells of, if it tells of one."""
        try:
            event: dict[str, Any] = json.loads(line)
            kind = event.get("event")
        except (ValueError, AttributeError) as error:
            raise NotUnderstoodError(
                f"`forkd build` wrote {line[:200]!r}, which is no event",
                hint="is that the program `forkd`, and as new as this SDK?",
            ) from error
        if kind == "built":
            self._built = decode(Built, event)
        elif kind == "failed":
            self._failed = decode(_Failed, event)
        elif kind == "step":
            step = decode(BuildStep, event)
            if step.status != "running":
                self.steps.append(step)
            return step
        return None

    def end(self, exit_code: int, said: str) -> Built:
        """What was built, or why it was not. `said` is what the program wrote for people."""
        if self._failed is not None:
            raise _error(self._failed, exit_code)
        if self._built is None or exit_code != 0:
            raise BuildFailedError(
                f"`forkd build` ended with {exit_code}: {said[-SAID_CHARS:].strip()}",
                hint="is the program `forkd` as new as this SDK?",
            )
        return self._built


def missing(program: str, error: OSError) -> ProgramMissingError:
    """The program was not started."""
    return ProgramMissingError(
        f"builds need the program `{program}`, which cannot be started: {error.strerror}",
        hint="install forkd on this machine, too, as its README says; or name the program with"
        f" `program=` or {PROGRAM_VARIABLE}",
    )


def _error(failed: _Failed, exit_code: int) -> ForkdError:
    hint = failed.hint or ""
    if failed.step is not None:
        return BuildFailedError(
            f"step {failed.number}, `{failed.step}`: {failed.message}",
            hint=hint,
            number=failed.number,
            step=failed.step,
            exit_code=failed.exit_code,
            output=failed.output or "",
            sandbox_id=failed.sandbox_id,
        )
    if failed.code is not None:
        body = models.ErrorBody(error=failed.message, code=failed.code, hint=hint)
        return error_of_body(body)
    kind = UnreachableError if exit_code == EXIT_UNREACHABLE else BuildFailedError
    return kind(failed.message, hint=hint)
