"""Where the daemon is. Pure: what the environment says comes in as a value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .failure import ConnectionBrokenError, ForkdError, RequestTimeoutError, UnreachableError


@dataclass(frozen=True)
class Target:
    """Where a daemon listens: exactly one of both."""

    url: str | None = None
    socket: str | None = None

    @property
    def base_url(self) -> str:
        """What the paths of routes are appended to."""
        # The host is not used to connect to a socket; HTTP demands one.
        return "http://localhost" if self.url is None else self.url

    def __str__(self) -> str:
        return self.url or self.socket or ""


def parse(text: str) -> Target:
    """A target from `http://host:port`, `https://...` or `unix:/path`."""
    if text.startswith(("http://", "https://")):
        return Target(url=text.rstrip("/"))
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if path.startswith("//"):
            path = path[2:]
        if path.startswith("/"):
            return Target(socket=path)
    raise ForkdError(
        f"`{text}` is no address of a daemon",
        hint="write it as http://127.0.0.1:8889 or unix:/run/forkd/forkd.sock",
    )


def of_environment(environment: Mapping[str, str], uid: int) -> Target:
    """The daemon that the command line would use, too.

    `FORKD_URL`, else `FORKD_SOCKET`, else the socket in `FORKD_HOME` or in the user's default
    directory.
    """
    if url := environment.get("FORKD_URL"):
        return parse(url)
    if socket := environment.get("FORKD_SOCKET"):
        return Target(socket=socket)
    if home := environment.get("FORKD_HOME"):
        return Target(socket=str(Path(os.path.abspath(home), "run", "forkd.sock")))  # noqa: PTH100
    return Target(socket=str(_run_directory(environment, uid) / "forkd.sock"))


def _run_directory(environment: Mapping[str, str], uid: int) -> Path:
    if uid == 0:
        return Path("/run/forkd")
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return Path(runtime, "forkd")
    return Path(f"/tmp/forkd-{uid}")  # noqa: S108 - the daemon refuses it if it is somebody else's


def unreachable(target: Target, error: object) -> UnreachableError:
    """Nobody has taken the connection."""
    return UnreachableError(
        f"no daemon answers at {target}: {error}",
        hint="start it with `forkd serve`, or set FORKD_URL to where it is",
    )


def silent(target: Target) -> RequestTimeoutError:
    """The answer has not come."""
    return RequestTimeoutError(f"the daemon at {target} did not answer in time")


def broken(target: Target, error: object) -> ConnectionBrokenError:
    """The connection ended before the answer."""
    return ConnectionBrokenError(f"the connection to the daemon at {target} broke off: {error}")
