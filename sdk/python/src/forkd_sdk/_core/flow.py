"""What takes several requests, as generators: they yield a `Call` and are sent what it gave.

A `Pause` asks the transport to wait. An error of a call is raised where it was yielded.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, TypeVar

from .. import models
from .._codes import (
    SandboxNotFoundError,
    SnapshotInUseError,
    SnapshotNotFoundError,
    SnapshotNotReadyError,
    TagTakenError,
)
from . import request
from .call import Call, Pause
from .failure import RequestTimeoutError

T = TypeVar("T")

Flow = Generator["Call[Any] | Pause", Any, T]

POLL_SECS = 0.1

# For a branch that is under way to come to its end.
SETTLE_SECS = 60.0


def create(
    template: str,
    *,
    metadata: Mapping[str, str] | None,
    ttl: float | None,
    idle_timeout: float | None,
    memory_limit_mib: int | None,
    per_child_netns: bool,
    network: models.NetworkPolicy | None,
) -> Flow[models.Sandbox]:
    """A sandbox of the snapshot; of the image of that name, if there is no such snapshot."""
    fork = request.fork(
        template,
        metadata=metadata,
        ttl=ttl,
        idle_timeout=idle_timeout,
        memory_limit_mib=memory_limit_mib,
        per_child_netns=per_child_netns,
        network=network,
    )
    missing: SnapshotNotFoundError | None = None
    try:
        started: list[models.Sandbox] = yield fork
    except SnapshotNotReadyError:
        # Somebody else may be building it.
        yield from until_ready(template, None)
        started = yield fork
    except SnapshotNotFoundError as error:
        missing = error
    if missing is not None:
        images: list[models.Image] = yield request.images()
        if template not in [image.name for image in images]:
            names = ", ".join(sorted(image.name for image in images)) or "none"
            raise SnapshotNotFoundError(
                f"there is no snapshot `{template}`, and no image of that name (images: {names})",
                hint="build a template first: client.snapshots.build(tag, image=...)",
                status=missing.status,
                request_id=missing.request_id,
            )
        yield from template_of(template)
        started = yield fork
    return started[0]


def template_of(image: str) -> Flow[None]:
    """Builds a template under the image's name, or waits for whoever does."""
    try:
        yield request.build(image, image)
    except TagTakenError:
        yield from until_ready(image, None)


def until_ready(tag: str, timeout: float | None) -> Flow[models.SnapshotInfo]:
    """Waits until the snapshot is ready."""
    waited = 0.0
    while True:
        info: models.SnapshotInfo = yield request.snapshot_info(tag)
        if info.status == "ready":
            return info
        if info.status == "failed":
            raise SnapshotNotReadyError(
                f"snapshot `{tag}` failed: {info.error or 'no reason given'}",
                hint="take it again",
            )
        if timeout is not None and waited >= timeout:
            raise RequestTimeoutError(f"snapshot `{tag}` is not ready after {timeout:g} s")
        yield Pause(POLL_SECS)
        waited += POLL_SECS


def until_ended(operation_id: str, timeout: float | None) -> Flow[models.Operation]:
    """Waits until the operation has ended, however it did."""
    left = timeout
    while True:
        step = request.WAIT_SECS_MAX if left is None else min(left, request.WAIT_SECS_MAX)
        operation: models.Operation = yield request.wait_operation(operation_id, step)
        if operation.state != "running":
            return operation
        if left is not None:
            left -= step
            if left <= 0:
                raise RequestTimeoutError(f"operation `{operation_id}` runs after {timeout:g} s")


def remove_sandbox(sandbox_id: str) -> Flow[None]:
    """Removes a sandbox that may be gone already."""
    try:
        yield request.remove_sandbox(sandbox_id)
    except SandboxNotFoundError:
        return


def remove_all_of(tag: str) -> Flow[None]:
    """Removes a snapshot that may not be there, or may be in the making, and all that depends on
    it.
    """
    waited = 0.0
    while True:
        try:
            yield request.remove_snapshot(tag, cascade=True)
        except SnapshotNotFoundError:
            return
        except (SnapshotNotReadyError, SnapshotInUseError) as error:
            if waited >= SETTLE_SECS:
                raise
            delay = error.retry_after_secs or POLL_SECS
            yield Pause(delay)
            waited += delay
        else:
            return


def exists(sandbox_id: str, path: str) -> Flow[bool]:
    """Whether there is such a file."""
    try:
        yield request.stat_file(sandbox_id, path)
    except FileNotFoundError:
        return False
    return True
