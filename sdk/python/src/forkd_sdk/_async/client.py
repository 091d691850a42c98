"""One daemon, and everything about it that belongs to no single sandbox."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import httpx

from .. import models
from .._core import flow, request
from .._core.call import Content
from .._core.failure import NotUnderstoodError
from .._core.result import Event
from .._core.source import BuildSource, EventSource
from .._core.target import of_environment, parse
from .sandbox import AsyncSandbox, AsyncSnapshot
from .stream import AsyncByteStream, AsyncStream
from .transport import AsyncTransport

RETRIES = 2


class AsyncSandboxes:
    """The sandboxes of a daemon."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self, *, metadata: Mapping[str, str] | None = None) -> list[AsyncSandbox]:
        """All of them, or those that have this metadata."""
        found = await self._transport.send(request.sandboxes(metadata))
        return [AsyncSandbox(self._transport, info) for info in found]

    async def create(
        self,
        template: str = "python",
        *,
        metadata: Mapping[str, str] | None = None,
        ttl: float | None = None,
        idle_timeout: float | None = None,
        memory_limit_mib: int | None = None,
        per_child_netns: bool = False,
        network: models.NetworkPolicy | None = None,
    ) -> AsyncSandbox:
        """Starts one; see `AsyncSandbox.create`."""
        create = flow.create(
            template,
            metadata=metadata,
            ttl=ttl,
            idle_timeout=idle_timeout,
            memory_limit_mib=memory_limit_mib,
            per_child_netns=per_child_netns,
            network=network,
        )
        return AsyncSandbox(self._transport, await self._transport.run(create))

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        """One that runs already."""
        info = await self._transport.send(request.sandbox(sandbox_id))
        return AsyncSandbox(self._transport, info)

    async def remove(self, sandbox_id: str) -> None:
        """Removes one."""
        await self._transport.send(request.remove_sandbox(sandbox_id))


class AsyncSnapshots:
    """The snapshots of a daemon, templates among them."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> list[AsyncSnapshot]:
        """All of them, whatever their status."""
        found = await self._transport.send(request.snapshots())
        return [AsyncSnapshot(self._transport, info) for info in found]

    async def get(self, tag: str) -> AsyncSnapshot:
        """One of them."""
        info = await self._transport.send(request.snapshot_info(tag))
        return AsyncSnapshot(self._transport, info)

    async def info(self, tag: str) -> models.SnapshotInfo:
        """One of them and its place among others."""
        return await self._transport.send(request.snapshot_info(tag))

    async def build(
        self,
        tag: str,
        *,
        image: str | None = None,
        from_reference: str | None = None,
        mem_size_mib: int | None = None,
        vcpus: int | None = None,
        cpu: models.KnownCpuModel | None = None,
        warm: Sequence[str] = (),
        private: bool = False,
        wait: bool = True,
        on_step: Callable[[str], object] | None = None,
    ) -> AsyncSnapshot:
        """Makes a template: boots an image, runs `warm` in it and freezes it.

        Either name an `image` of the daemon, or an OCI image with `from_reference`, such as
        `python:3.12-slim`. `cpu` is what guests see as their processor: with `x86-64-v2` or
        `x86-64-v3`, snapshots start on other hosts that have that level. What is `private` is
        neither pushed nor exported, nor is what is branched from it.

        `on_step` is called with each step when it begins. With `wait=False` the answer comes at
        once; the snapshot's `wait` waits for its end.
        """
        call = request.build(
            tag,
            image,
            from_reference=from_reference,
            mem_size_mib=mem_size_mib,
            vcpus=vcpus,
            cpu=cpu,
            warm=warm,
            private=private,
            wait=wait,
        )
        if on_step is None:
            return AsyncSnapshot(self._transport, await self._transport.send(call))
        snapshot = None
        async with AsyncStream(self._transport, BuildSource(call)) as steps:
            async for event in steps:
                if event.step is not None:
                    on_step(event.step)
                snapshot = event.snapshot or snapshot
        if snapshot is None:
            raise NotUnderstoodError(f"the daemon went away while it built `{tag}`")
        return AsyncSnapshot(self._transport, snapshot)

    async def compact(self, tag: str, *, to: str, wait: bool = True) -> AsyncSnapshot:
        """Makes a snapshot of the same state that depends on no other.

        With `wait=False` the answer comes at once; the snapshot's `wait` waits for its end.
        """
        info = await self._transport.send(request.compact(tag, to, wait=wait))
        return AsyncSnapshot(self._transport, info)

    def export_artifact(self, tag: str) -> AsyncByteStream:
        """The snapshot as one file, piece by piece, for another daemon.

        The file has the memory and disk of the sandbox, with every password and key that programs
        had read there.
        """
        return AsyncByteStream(self._transport, request.export_artifact(tag))

    async def import_artifact(
        self, data: Content, *, tag: str | None = None, trust_once: bool = False
    ) -> AsyncSnapshot:
        """Makes a snapshot of such a file: bytes, an open file or an iterable of pieces.

        The daemon must trust the key that signed it: see `keys`. With `trust_once` it imports
        whoever signed it; a forged file can attack the host.
        """
        call = request.import_artifact(data, tag, trust_once=trust_once)
        return AsyncSnapshot(self._transport, await self._transport.send(call))

    async def push(self, tag: str, reference: str) -> models.PushedSnapshot:
        """Puts the snapshot into a registry, such as `registry.example/team/warm:v1`. For admins.

        The registry gets the memory and disk of the sandbox, with every password and key that
        programs had read there. What it has is not sent.
        """
        return await self._transport.send(request.push(tag, reference))

    async def pull(
        self, reference: str, *, tag: str | None = None, trust_once: bool = False
    ) -> AsyncSnapshot:
        """Makes a snapshot of what a daemon has pushed to a registry. For admins.

        The daemon must trust the key that signed it: see `keys`. With `trust_once` it takes what
        anybody signed; a forged one can attack the host.
        """
        call = request.pull(reference, tag, trust_once=trust_once)
        return AsyncSnapshot(self._transport, await self._transport.send(call))

    async def hub_info(self, reference: str) -> models.HubSnapshot:
        """What a registry has under a reference, who signed it, and whether it starts here. No
        memory is fetched. For admins.
        """
        return await self._transport.send(request.hub_info(reference))

    async def hub_search(self, registry: str, name: str = "") -> models.HubListing:
        """The snapshots in a registry, in repositories with `name` in their names. Some registries
        list nothing: then it raises `BadRequestError`. For admins.
        """
        return await self._transport.send(request.hub_search(registry, name))

    async def remove(self, tag: str, *, cascade: bool = False, force: bool = False) -> None:
        """Removes one, and with `cascade` the sandboxes and snapshots that depend on it; with
        `force` its tag only, so that these keep working.
        """
        await self._transport.send(request.remove_snapshot(tag, cascade=cascade, force=force))


class AsyncOperations:
    """What takes longer than a moment."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(
        self, *, state: models.KnownOperationState | None = None
    ) -> list[models.Operation]:
        """Those that run, and the last ones that ended."""
        return await self._transport.send(request.operations(state))

    async def get(self, operation_id: str) -> models.Operation:
        """One of them."""
        return await self._transport.send(request.operation(operation_id))

    async def wait(self, operation_id: str, *, timeout: float | None = None) -> models.Operation:
        """Waits until it has ended, well or not: see its `state`."""
        return await self._transport.run(flow.until_ended(operation_id, timeout))

    async def cancel(self, operation_id: str) -> None:
        """Asks for its end."""
        await self._transport.send(request.cancel_operation(operation_id))


class AsyncKeys:
    """The key that the daemon signs artifacts with, and those that it trusts."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def get(self) -> models.Keys:
        """All of them."""
        return await self._transport.send(request.keys())

    async def trust(self, name: str, key: str) -> None:
        """Trusts a key from now on, in place of one of the same name."""
        await self._transport.send(request.trust_key(name, key))

    async def remove(self, name: str) -> None:
        """Trusts it no more. What was imported stays."""
        await self._transport.send(request.remove_key(name))


class AsyncSecrets:
    """Keys that header rules put into requests. Sandboxes use them and never have them."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> list[models.Secret]:
        """The names of yours."""
        return await self._transport.send(request.secrets())

    async def set(self, name: str, value: str) -> None:
        """Sets one, or replaces its value: one line of ASCII."""
        await self._transport.send(request.set_secret(name, value))

    async def remove(self, name: str) -> None:
        """Removes one. Requests that need it fail from then on."""
        await self._transport.send(request.remove_secret(name))


class AsyncNetworks:
    """Private networks, whose members reach each other by name. See `AsyncSandbox.join`."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> list[models.Network]:
        """Yours, with their members."""
        return await self._transport.send(request.networks())

    async def create(self, name: str) -> models.Network:
        """Creates one without members."""
        return await self._transport.send(request.create_network(name))

    async def get(self, name: str) -> models.Network:
        """One of them, with its members."""
        return await self._transport.send(request.private_network(name))

    async def remove(self, name: str) -> None:
        """Removes one. Connections between its members are reset."""
        await self._transport.send(request.remove_network(name))


class AsyncClient:
    """A connection to a daemon.

    `url` is `http://host:port` or `unix:/path/of/the.sock`; by default it is the daemon that the
    command line would use: `FORKD_URL`, else the socket of the user's own daemon. `token` is by
    default `FORKD_TOKEN`; `ca_cert` names a file with the issuer of the daemon's certificate, by
    default `FORKD_CA_CERT`. A request that is refused because too many wait is repeated
    `max_retries` times.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        ca_cert: str | None = None,
        max_retries: int = RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        target = of_environment(os.environ, os.geteuid()) if url is None else parse(url)
        self._transport = AsyncTransport(
            target,
            token=token or os.environ.get("FORKD_TOKEN"),
            ca_cert=ca_cert or os.environ.get("FORKD_CA_CERT") or None,
            max_retries=max_retries,
            mounted=transport,
        )
        self.sandboxes = AsyncSandboxes(self._transport)
        """The sandboxes."""
        self.snapshots = AsyncSnapshots(self._transport)
        """The snapshots."""
        self.operations = AsyncOperations(self._transport)
        """What takes longer than a moment."""
        self.secrets = AsyncSecrets(self._transport)
        self.keys = AsyncKeys(self._transport)
        """Keys for header rules."""
        self.networks = AsyncNetworks(self._transport)
        """Private networks."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._transport.target}>"

    async def health(self) -> models.Health:
        """A sign of life."""
        return await self._transport.send(request.healthz())

    async def version(self) -> models.Version:
        """Which daemon answers."""
        return await self._transport.send(request.version())

    async def metrics(self) -> str:
        """Its metrics, as Prometheus reads them."""
        return await self._transport.send(request.metrics())

    async def images(self) -> list[models.Image]:
        """What templates can be built from."""
        return await self._transport.send(request.images())

    def events(
        self,
        *,
        after: str | None = None,
        type: str | None = None,
        sandbox: str | None = None,
        snapshot: str | None = None,
    ) -> AsyncStream[Event]:
        """What happens, from the `with` line on, or after the event with this id.

        `type` is the beginning of the events' types, such as `sandbox.`.
        """
        source = EventSource(after=after, type=type, sandbox=sandbox, snapshot=snapshot)
        return AsyncStream(self._transport, source)

    async def close(self) -> None:
        """Closes the connections. Sandboxes stay."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def transport_of_environment() -> AsyncTransport:
    """A connection that nobody has to close: it ends with the last sandbox that uses it."""
    return AsyncTransport(
        of_environment(os.environ, os.geteuid()),
        token=os.environ.get("FORKD_TOKEN"),
        ca_cert=os.environ.get("FORKD_CA_CERT") or None,
        max_retries=RETRIES,
        shared=True,
    )
