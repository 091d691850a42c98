# Generated from _async/sandbox.py by sdk/python/scripts/generate.py. Do not edit.
"""Sandboxes, snapshots and what a branch gives: they refer to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from .. import models
from .._core import flow, request
from .._core.call import error_of_body
from .._core.failure import ForkdError
from .._core.result import Execution
from .commands import Commands
from .files import Files
from .ports import Ports
from .transport import Transport

if TYPE_CHECKING:
    from .client import Client

Mode = models.KnownBranchMode


class Sandbox:
    """An isolated machine that can be branched while it runs.

    Made by `create` or `connect`. As a context manager it is removed at the end.
    """

    def __init__(self, transport: Transport, info: models.Sandbox) -> None:
        self._transport = transport
        transport.enter(self)
        self.info = info
        """What was last heard of it."""
        self.commands = Commands(transport, info.id)
        """Runs programs in it."""
        self.files = Files(transport, info.id)
        """Reads and writes its files."""
        self.ports = Ports(transport, info.id)
        """Reaches what listens in it."""

    @classmethod
    def create(
        cls,
        template: str = "python",
        *,
        metadata: Mapping[str, str] | None = None,
        ttl: float | None = None,
        idle_timeout: float | None = None,
        memory_limit_mib: int | None = None,
        per_child_netns: bool = False,
        network: models.NetworkPolicy | None = None,
        client: Client | None = None,
    ) -> Sandbox:
        """Starts a sandbox from the snapshot with this tag.

        If there is no such snapshot but an image of that name, the template is built first; that
        takes a while, once. `metadata` is kept with the sandbox. The daemon removes it after `ttl`
        seconds, or when it was not used for `idle_timeout` seconds. Its VMM has at most
        `memory_limit_mib` of the host's memory; with `per_child_netns` it is cut off from the
        host's network. `network` says what it may reach: by default public addresses, or
        what the source of the snapshot could. Without a `client` the daemon is the one that the
        environment names.
        """
        transport = _transport(client)
        create = flow.create(
            template,
            metadata=metadata,
            ttl=ttl,
            idle_timeout=idle_timeout,
            memory_limit_mib=memory_limit_mib,
            per_child_netns=per_child_netns,
            network=network,
        )
        return cls(transport, transport.run(create))

    @classmethod
    def connect(cls, sandbox_id: str, *, client: Client | None = None) -> Sandbox:
        """A sandbox that runs already."""
        transport = _transport(client)
        return cls(transport, transport.send(request.sandbox(sandbox_id)))

    @property
    def id(self) -> str:
        """Its name, `sb-` and hexadecimal digits."""
        return self.info.id

    @property
    def metadata(self) -> dict[str, str]:
        """What its creator noted."""
        return self.info.metadata

    @property
    def state(self) -> str:
        """`running`, `paused`, `dead` and so on, as it was when last heard of."""
        return self.info.state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.state} from {self.info.snapshot_tag}>"

    def refresh(self) -> models.Sandbox:
        """Asks how it is; also in `info`."""
        self.info = self._transport.send(request.sandbox(self.id))
        return self.info

    def run_code(self, code: str, *, timeout: float | None = 60) -> Execution:
        """Runs Python code in the sandbox's interpreter, which keeps its variables.

        An exception in the code is not raised here: see `error`, or call `raise_for_error`. When
        `timeout` seconds are over the code is interrupted and `CodeTimeoutError` is raised.
        """
        execution = self._transport.send(request.eval_code(self.id, code, timeout))
        return execution.raise_for_error() if execution.timed_out else execution

    def branch(
        self,
        n: int = 0,
        *,
        mode: Mode | None = None,
        tag: str | None = None,
        wait: bool = True,
        measure_diff: bool = False,
        network: models.NetworkPolicy | None = None,
        private: bool = False,
    ) -> Branch:
        """Takes a snapshot of this very instant and starts `n` children from it.

        This sandbox goes on; it pauses for about a millisecond in mode `live`, which is the
        default. Each child has memory, processes and disk of that instant. With `wait=False` the
        answer comes while the snapshot is still written; without children then. `network` says
        what the children may reach; by default what this sandbox may. What is `private` is neither
        pushed nor exported, nor is what is branched from it.
        """
        call = request.branch(
            self.id,
            n=n,
            mode=mode,
            tag=tag,
            wait=wait,
            measure_diff=measure_diff,
            network=network,
            private=private,
        )
        answer = self._transport.send(call)
        children = [Child.of(self._transport, child) for child in answer.children]
        return Branch(Snapshot(self._transport, answer), children)

    def snapshot(self, tag: str | None = None, *, mode: Mode | None = None) -> Snapshot:
        """Takes a snapshot of this very instant."""
        return (self.branch(0, mode=mode, tag=tag)).snapshot

    def rollback(self, snapshot: Snapshot | str) -> None:
        """Puts the sandbox back to what it was at a snapshot; its id stays."""
        call = request.rollback(self.id, _tag(snapshot))
        self.info = self._transport.send(call)

    def network(self) -> models.NetworkPolicy:
        """What it may reach."""
        return self._transport.send(request.network(self.id))

    def network_log(self, *, after: int | None = None) -> models.NetworkLog:
        """What it has reached and what it was refused: the newest entries, or those that follow the
        number `after`; at most 1,000.
        """
        return self._transport.send(request.network_log(self.id, after))

    def join(self, network: str) -> models.Membership:
        """Makes it a member of a private network: other members reach it by the name in the
        answer. A member stays one.
        """
        self.info = self._transport.send(request.join_network(self.id, network))
        return next(it for it in self.info.networks if it.network == network)

    def leave(self, network: str) -> None:
        """Makes it a member no longer. Its connections to other members are reset."""
        self.info = self._transport.send(request.leave_network(self.id, network))

    def set_network(self, network: models.NetworkPolicy) -> None:
        """Replaces what it may reach; ends connections that are no longer allowed."""
        self.info = self._transport.send(request.set_network(self.id, network))

    def pause(self) -> None:
        """Stops its processors until `resume`."""
        self.info = self._transport.send(request.pause(self.id))

    def resume(self) -> None:
        """Lets it go on after `pause`."""
        self.info = self._transport.send(request.resume(self.id))

    def ping(self) -> models.Pong:
        """A sign of life from its guest agent."""
        return self._transport.send(request.ping(self.id))

    def logs(self) -> bytes:
        """What it wrote to its console, unfiltered."""
        return self._transport.send(request.logs(self.id))

    def remove(self) -> None:
        """Removes it, if it is still there."""
        self._transport.run(flow.remove_sandbox(self.id))
        self._transport.leave(self)

    def close(self) -> None:
        """Lets go of it without removing it; `connect` finds it again."""
        self._transport.leave(self)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


class Snapshot:
    """A complete state of a sandbox at one instant, from which any number can be started."""

    def __init__(self, transport: Transport, info: models.Snapshot) -> None:
        self._transport = transport
        self.info = info
        """What was last heard of it."""

    @property
    def tag(self) -> str:
        """Its name."""
        return self.info.tag

    @property
    def pause_ms(self) -> float | None:
        """How long the source was paused for it."""
        return self.info.pause_ms

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.tag} {self.info.status}>"

    def fork(
        self,
        n: int = 1,
        *,
        metadata: Mapping[str, str] | None = None,
        ttl: float | None = None,
        idle_timeout: float | None = None,
        memory_limit_mib: int | None = None,
        per_child_netns: bool = False,
        network: models.NetworkPolicy | None = None,
    ) -> list[Sandbox]:
        """Starts `n` sandboxes from it: all or none."""
        call = request.fork(
            self.tag,
            n,
            metadata=metadata,
            ttl=ttl,
            idle_timeout=idle_timeout,
            memory_limit_mib=memory_limit_mib,
            per_child_netns=per_child_netns,
            network=network,
        )
        started = self._transport.send(call)
        return [Sandbox(self._transport, info) for info in started]

    def refresh(self) -> models.SnapshotInfo:
        """Asks how it is, with its place among others."""
        info = self._transport.send(request.snapshot_info(self.tag))
        self.info = info
        return info

    def wait(self, *, timeout: float | None = None) -> None:
        """Waits until sandboxes can be started from it."""
        self.info = self._transport.run(flow.until_ready(self.tag, timeout))

    def compact(self, to: str, *, wait: bool = True) -> Snapshot:
        """Makes a snapshot of the same state that depends on no other.

        With `wait=False` the answer comes at once; the snapshot's `wait` waits for its end.
        """
        info = self._transport.send(request.compact(self.tag, to, wait=wait))
        return Snapshot(self._transport, info)

    def remove(self, *, cascade: bool = False, force: bool = False) -> None:
        """Removes it, and with `cascade` the sandboxes and snapshots that depend on it; with
        `force` its tag only, so that these keep working.
        """
        call = request.remove_snapshot(self.tag, cascade=cascade, force=force)
        self._transport.send(call)


@dataclass(frozen=True)
class Child:
    """One child of a branch: exactly one of `sandbox` and `error`."""

    sandbox: Sandbox | None = None
    """It runs."""
    error: ForkdError | None = None
    """It could not be started."""

    @classmethod
    def of(cls, transport: Transport, child: models.Child) -> Child:
        """The child that an answer tells of."""
        if child.error is not None:
            return cls(error=error_of_body(child.error))
        if child.sandbox is None:
            return cls(error=ForkdError("the daemon told of a child nothing at all"))
        return cls(sandbox=Sandbox(transport, child.sandbox))

    def unwrap(self) -> Sandbox:
        """The sandbox, or raises the error."""
        if self.sandbox is not None:
            return self.sandbox
        raise self.error or ForkdError("there is no child")


@dataclass(frozen=True)
class Branch:
    """What a branch gave. As a context manager its children and its snapshot are removed at the
    end.
    """

    snapshot: Snapshot
    """The state of the source at the branch point."""
    children: list[Child]
    """One for each that was asked for."""

    @property
    def sandboxes(self) -> list[Sandbox]:
        """The children that run."""
        return [child.sandbox for child in self.children if child.sandbox is not None]

    def unwrap(self) -> list[Sandbox]:
        """All children, or raises the error of the first that could not be started."""
        return [child.unwrap() for child in self.children]

    def remove(self) -> None:
        """Removes the children, the snapshot and all that was started or branched from them."""
        self.snapshot._transport.run(flow.remove_all_of(self.snapshot.tag))
        for sandbox in self.sandboxes:
            sandbox.close()

    def __enter__(self) -> Branch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def _transport(client: Client | None) -> Transport:
    if client is not None:
        return client._transport
    from .client import transport_of_environment

    return transport_of_environment()


def _tag(snapshot: Snapshot | str) -> str:
    return snapshot if isinstance(snapshot, str) else snapshot.tag
