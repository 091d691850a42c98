# Generated from openapi/v1.json by sdk/python/scripts/generate.py. Do not edit.
"""What the daemon answers with, as it comes over the wire.

Fields that this version does not know are left out when an answer is read, and
words that it does not know are kept: a newer daemon may say more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = [
    "Accelerator",
    "BranchAnswer",
    "BranchMode",
    "BuildEvent",
    "Child",
    "CpuModel",
    "ErrorBody",
    "EvalAnswer",
    "EvalDisplay",
    "EvalPart",
    "EventType",
    "ExecAnswer",
    "FileEntry",
    "FileKind",
    "FlowOutcome",
    "HeaderRule",
    "HeaderTransform",
    "Health",
    "HubEntry",
    "HubListing",
    "HubSnapshot",
    "Image",
    "Isolation",
    "Keys",
    "KnownAccelerator",
    "KnownBranchMode",
    "KnownCpuModel",
    "KnownEventType",
    "KnownFileKind",
    "KnownFlowOutcome",
    "KnownIsolation",
    "KnownOperationKind",
    "KnownOperationState",
    "KnownProcessState",
    "KnownReason",
    "KnownSandboxState",
    "KnownSnapshotStatus",
    "Membership",
    "Network",
    "NetworkLog",
    "NetworkLogEntry",
    "NetworkPolicy",
    "Operation",
    "OperationKind",
    "OperationState",
    "Pong",
    "Port",
    "PortToken",
    "Process",
    "ProcessState",
    "PushedSnapshot",
    "Reason",
    "Sandbox",
    "SandboxState",
    "Secret",
    "Snapshot",
    "SnapshotInfo",
    "SnapshotStatus",
    "TrustedKey",
    "Version",
]


KnownAccelerator: TypeAlias = Literal["kvm", "tcg"]
"""The words of `Accelerator` that this version knows."""
Accelerator: TypeAlias = KnownAccelerator | str
"""What executes a guest's instructions. Device state is bound to it."""


KnownBranchMode: TypeAlias = Literal["full", "diff", "live"]
"""The words of `BranchMode` that this version knows."""
BranchMode: TypeAlias = KnownBranchMode | str
"""Which pages a branch captures, and when."""


@dataclass(frozen=True, kw_only=True)
class BuildEvent:
    """One line of a streamed template build. The last is `snapshot` or `error`."""

    error: ErrorBody | None = None
    """The build failed."""

    snapshot: Snapshot | None = None
    """The template is ready."""

    step: str | None = None
    """A step has begun."""


@dataclass(frozen=True, kw_only=True)
class Child:
    """One child of a branch: exactly one of `sandbox` and `error`."""

    error: ErrorBody | None = None
    """It could not be started."""

    sandbox: Sandbox | None = None
    """It runs."""


KnownCpuModel: TypeAlias = Literal["host", "x86-64-v2", "x86-64-v3"]
"""The words of `CpuModel` that this version knows."""
CpuModel: TypeAlias = KnownCpuModel | str
"""What guests see as their processor. Snapshots start where it is the same."""


@dataclass(frozen=True, kw_only=True)
class ErrorBody:
    """The body of every answer that is not a success."""

    code: str
    """A stable word for programs; one of the catalogue."""

    error: str
    """What happened, for people."""

    hint: str
    """What to do about it."""

    reason: Reason | None = None


@dataclass(frozen=True, kw_only=True)
class EvalAnswer:
    """What Python code gave."""

    exit_code: int
    """0 when there is no error, else 1."""

    state_lost: bool
    """The interpreter ended: variables are gone."""

    stderr: str
    """What was printed to standard error."""

    stdout: str
    """What was printed."""

    timed_out: bool
    """Its time was over."""

    displays: list[EvalDisplay] = field(default_factory=list)
    """What it showed before, in the order in which it did: at most 256 values, 16 MiB in all.
    """

    displays_left_out: int | None = None
    """How many values had no room in `displays`."""

    error: str | None = None
    """Traceback, or what happened to the interpreter."""

    parts: list[EvalPart] = field(default_factory=list)
    """All forms that the last expression's value has, 4 MiB in all; what is larger is left out.
    The first is `text/plain`.
    """

    result: str | None = None
    """`repr` of the last expression; null when there is none or it is `None`."""

    stderr_base64: str | None = None
    """The exact bytes of standard error, present only when they are not UTF-8."""

    stdout_base64: str | None = None
    """The exact bytes of standard output, present only when they are not UTF-8."""


@dataclass(frozen=True, kw_only=True)
class EvalDisplay:
    """A value that code showed: by `display`, or as a figure."""

    parts: list[EvalPart]
    """All forms that it has, 4 MiB in all; what is larger is left out. The first is
    `text/plain`.
    """


@dataclass(frozen=True, kw_only=True)
class EvalPart:
    """A form of a value, as its `_repr_mimebundle_`, `_repr_html_`, `_repr_png_` and so on give
    it.
    """

    data: str
    """The text, where the type is `text/` something or ends with `json`, `xml` or `javascript`;
    the bytes as base64 elsewhere.
    """

    mime: str
    """Its media type."""


KnownEventType: TypeAlias = Literal[
    "sandbox.started",
    "sandbox.state",
    "sandbox.dead",
    "sandbox.refused",
    "sandbox.removed",
    "snapshot.writing",
    "snapshot.ready",
    "snapshot.durable",
    "snapshot.failed",
    "snapshot.removed",
    "operation.started",
    "operation.progress",
    "operation.ended",
    "lost",
]
"""The words of `EventType` that this version knows."""
EventType: TypeAlias = KnownEventType | str
"""What an event tells: what it is about, a dot, and what happened to it."""


@dataclass(frozen=True, kw_only=True)
class ExecAnswer:
    """What a program wrote and how it ended."""

    exit_code: int
    """Exit code, or 128 + signal."""

    stderr: str
    """Standard error."""

    stdout: str
    """Standard output."""

    timed_out: bool
    """It was killed because its time was over."""

    signal: int | None = None
    """The signal that ended it."""

    stderr_base64: str | None = None
    """The exact bytes of standard error, present only when they are not UTF-8."""

    stdout_base64: str | None = None
    """The exact bytes of standard output, present only when they are not UTF-8."""


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A thing of a sandbox's file system."""

    kind: FileKind
    """What it is."""

    mode: str
    """Permission bits in octal, such as `0644`."""

    modified_at_unix: int
    """When its content was changed last, in seconds since the Unix epoch."""

    name: str
    """Last part of its path. Bytes that are not UTF-8 are replaced."""

    path: str
    """Absolute path."""

    size_bytes: int
    """Size of a file's content."""

    group: str | None = None
    """The group that it belongs to, told as the owner is."""

    owner: str | None = None
    """The user that it belongs to: a name of the guest, or a number where there is none. Absent
    from guests of an older forkd.
    """


KnownFileKind: TypeAlias = Literal["file", "directory", "symlink", "other"]
"""The words of `FileKind` that this version knows."""
FileKind: TypeAlias = KnownFileKind | str
"""What a thing of a guest's file system is."""


KnownFlowOutcome: TypeAlias = Literal["ended", "failed", "refused"]
"""The words of `FlowOutcome` that this version knows."""
FlowOutcome: TypeAlias = KnownFlowOutcome | str
"""What became of a connection, or of another exchange of packets."""


@dataclass(frozen=True, kw_only=True)
class HeaderRule:
    """One change to the requests to a host."""

    transform: HeaderTransform
    """What it changes."""


@dataclass(frozen=True, kw_only=True)
class HeaderTransform:
    """What the gateway changes in a request."""

    headers: dict[str, str]
    """Headers that replace those of the guest. In a value, `${secrets.NAME}` stands for the
    secret of that name.
    """


@dataclass(frozen=True, kw_only=True)
class Health:
    """A sign of life."""

    ok: bool
    """Always true: a daemon that is not well does not answer."""


@dataclass(frozen=True, kw_only=True)
class HubEntry:
    """A tag of a registry that names a snapshot."""

    bytes: int
    """Bytes of all its parts, as they are in the registry."""

    digest: str
    """Digest of what the tag names now."""

    reference: str
    """The tag, in full: what a pull takes."""


@dataclass(frozen=True, kw_only=True)
class HubListing:
    """Snapshots that were found in a registry."""

    is_complete: bool
    """Whether these are all. A search looks at 1000 tags, and for a minute at most."""

    snapshots: list[HubEntry]
    """In the order of the registry."""


@dataclass(frozen=True, kw_only=True)
class HubSnapshot:
    """A snapshot in a registry. What it consists of is as its signer says."""

    accelerator: str
    """`kvm` or `tcg`."""

    ancestors: list[str]
    """What the snapshots below were called, the nearest first."""

    bytes: int
    """Bytes of all its parts, as they are in the registry."""

    cpu_model: str
    """What guests see as their processor."""

    created_at_unix: int
    """When it was taken, in seconds since 1970."""

    disk_overlays: int
    """How many disk overlays it has."""

    image: str
    """The image that it needs, which is not in it."""

    key: str
    """The key that signed it."""

    mem_size_mib: int
    """Guest RAM in MiB."""

    memory_layers: int
    """How many memory layers it has."""

    reference: str
    """Where it is, with its digest."""

    tag: str
    """The tag that it had where it was pushed."""

    trusted: bool
    """Whether this daemon trusts that key."""

    vcpus: int
    """Virtual CPUs."""

    vmm_version: str
    """The version of QEMU."""

    problem: str | None = None
    """Why it does not start on this host; absent if it does."""

    trusted_as: str | None = None
    """What you call the key, if it is trusted and not this daemon's own."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image that templates can be built from."""

    description: str
    """One line for people."""

    name: str
    """Its name."""


KnownIsolation: TypeAlias = Literal["none", "namespaces", "full"]
"""The words of `Isolation` that this version knows."""
Isolation: TypeAlias = KnownIsolation | str
"""How far a VMM is kept from its host."""


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The key that this daemon signs artifacts with, and those whose artifacts it imports."""

    key: str
    """This daemon's key. Others trust it to import what it exports."""

    trusted: list[TrustedKey]
    """Keys that this daemon trusts, by name."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """That a sandbox is a member of a private network."""

    host_name: str
    """The name by which other members reach it. With `name` in the sandbox's metadata, that
    name in place of the sandbox's id leads to it too.
    """

    ipv4: str
    """The IPv4 address that other members have for it."""

    ipv6: str
    """The IPv6 address that other members have for it."""

    network: str
    """The network."""

    sandbox: str
    """The sandbox."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A private network. Its members reach each other by name, whatever else they may reach."""

    created_at_unix: int
    """When it was created, in seconds since 1970."""

    members: list[Membership]
    """Its members, by address."""

    name: str
    """Its name."""


@dataclass(frozen=True, kw_only=True)
class NetworkLog:
    """What a sandbox has reached, and what it was refused."""

    entries: list[NetworkLogEntry]
    """Oldest first."""

    missing: int
    """How many entries before these the reader has not seen and the log may no longer keep."""


@dataclass(frozen=True, kw_only=True)
class NetworkLogEntry:
    """One connection, one exchange of datagrams, or one refusal."""

    number: int
    """Which entry of this sandbox it is, from 1."""

    outcome: FlowOutcome
    """What became of it."""

    protocol: str
    """`tcp`, `udp` or `icmp`. A refused name counts as `udp`."""

    reason: str
    """The rule that decided, or what went wrong."""

    unix_ms: int
    """When it was written, in milliseconds since 1970."""

    address: str | None = None
    """The other end; null for a refused name."""

    bytes_in: int | None = None
    """Bytes that it got; null for a refusal."""

    bytes_out: int | None = None
    """Bytes that the sandbox sent; null for a refusal."""

    ms: int | None = None
    """From the first packet to the end; null for a refusal."""

    name: str | None = None
    """The name by which the sandbox knows the address, or which was refused."""

    port: int | None = None
    """The other end's port; 0 for a ping, null for a refused name."""

    repeated: int | None = None
    """How often the same refusal came again; null if it is the first."""


@dataclass(frozen=True, kw_only=True)
class NetworkPolicy:
    """What a sandbox may reach, read in this order: `allow_out`, then `deny_out`, then
    `allow_internet_access`. Some addresses stay out of reach whatever it says, such as the
    host's own and those of metadata services. The last three fields are about
    [previews](/v1/sandboxes/{id}/ports/{port}/token).
    """

    allow_internet_access: bool | None = None
    """Whether public addresses that no list names can be reached. By default they can, unless
    there is an `allow_out`.
    """

    allow_out: list[str] = field(default_factory=list)
    """What can be reached, at most 256 entries: a name, `*.name` for all names below it, an
    address, a range, or `*`; with a port or a range of ports behind a colon, and `udp://` or
    `icmp://` in front for what is not TCP.
    """

    allow_public_traffic: bool | None = None
    """Whether whoever knows the address of a preview may open it: no port needs a token."""

    deny_out: list[str] = field(default_factory=list)
    """What cannot be reached unless `allow_out` names it: addresses and ranges, at most 256."""

    join: list[str] | None = None
    """The private networks that it is a member of, at most 16. Left out: none for a new
    sandbox, those of its source for a child of a branch, and no change for a sandbox that runs.
    Alone, it says nothing about what else can be reached: that stays, or is inherited.
    """

    mask_request_host: str | None = None
    """The `Host` that servers are told in requests of previews, in place of the preview's own.
    `${PORT}` stands for the server's port.
    """

    public_ports: list[int] = field(default_factory=list)
    """Ports whose previews need no token, at most 256."""

    rules: dict[str, list[HeaderRule]] = field(default_factory=dict)
    """Headers that the gateway sets in every request to a host, by the host's name or `*.name`.
    A rule allows nothing by itself. At most 64 hosts.
    """


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A long request: it can be looked at, waited for and, up to some point, cancelled."""

    created_at_unix: int
    """When it began, in seconds since 1970."""

    id: str
    """Its name, `op-` and twelve hexadecimal digits."""

    kind: OperationKind
    """What it does: `publish` makes a snapshot durable, `flatten` merges layers or overlays of
    a running sandbox, `restore` makes missing hot copies after a start of the daemon and checks
    what is there.
    """

    state: OperationState
    """How it stands."""

    step: str
    """What it is at, or was at last, in words: for people."""

    done: int | None = None
    """Parts of the step that are done."""

    ended_at_unix: int | None = None
    """When it ended, in seconds since 1970."""

    error: ErrorBody | None = None

    owner: str | None = None
    """To whom it belongs."""

    sandbox_id: str | None = None
    """The sandbox that it works on."""

    snapshot_tag: str | None = None
    """The snapshot that it makes, or makes durable."""

    total: int | None = None
    """All parts of the step."""


KnownOperationKind: TypeAlias = Literal[
    "template",
    "branch",
    "compact",
    "export",
    "import",
    "push",
    "pull",
    "publish",
    "flatten",
    "restore",
]
"""The words of `OperationKind` that this version knows."""
OperationKind: TypeAlias = KnownOperationKind | str
"""What an operation does."""


KnownOperationState: TypeAlias = Literal["running", "succeeded", "failed", "cancelled"]
"""The words of `OperationState` that this version knows."""
OperationState: TypeAlias = KnownOperationState | str
"""How an operation stands."""


@dataclass(frozen=True, kw_only=True)
class Pong:
    """A sign of life from the guest agent."""

    epoch: int
    """How often the agent has been greeted: once per boot and per fork on the way here."""

    frames_rejected: int
    """Stretches of our stream that the agent could not read."""

    pong: bool
    """Always true."""

    requests_running: int
    """Requests under way in the guest."""

    uptime_ms: float
    """Since the guest's boot, in milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Port:
    """A TCP port that is listened on in a sandbox. All of it comes from the guest."""

    address: str
    """The address that it is listened on. All of them can be reached, loopback addresses too.
    """

    port: int
    """The port."""

    pid: int | None = None
    """The process that listens, if the guest knows it."""

    program: str | None = None
    """The name of its program."""


@dataclass(frozen=True, kw_only=True)
class PortToken:
    """A token that opens one port of a sandbox in a browser, or to any client of HTTP."""

    expires_at_unix: int
    """When it ends, in seconds since 1970."""

    host: str
    """The host of the address, with its port. Requests to it have the token in the header
    `X-Forkd-Traffic-Token`.
    """

    token: str
    """The token."""

    url: str
    """The address of the port, with the token. A browser that opens it gets a cookie instead.
    """


@dataclass(frozen=True, kw_only=True)
class Process:
    """A background process."""

    args: list[str]
    """Program and arguments."""

    created_at_unix: int
    """When it was started, in seconds since the Unix epoch."""

    id: str
    """Its id here."""

    output_from: int
    """Offset of the oldest byte of output that is kept. Both streams are counted together."""

    output_to: int
    """Offset that the next byte of output will have."""

    pid: int
    """Its id in the guest."""

    state: ProcessState
    """How it stands; `lost` when its sandbox or the guest agent is gone."""

    timed_out: bool
    """It was killed because its time was over."""

    error: str | None = None
    """Why it is lost."""

    exit_code: int | None = None
    """Exit code, or 128 + signal; present once it has exited."""

    inherited: bool | None = None
    """It was started before this sandbox was forked. What it wrote until then is in the source.
    """

    signal: int | None = None
    """The signal that ended it."""


KnownProcessState: TypeAlias = Literal["running", "exited", "lost"]
"""The words of `ProcessState` that this version knows."""
ProcessState: TypeAlias = KnownProcessState | str
"""How a background process stands."""


@dataclass(frozen=True, kw_only=True)
class PushedSnapshot:
    """What a push has done."""

    bytes: int
    """Bytes of all its parts."""

    bytes_sent: int
    """Bytes of those that the registry had not got."""

    reference: str
    """Where the snapshot is now, with its digest."""


KnownReason: TypeAlias = Literal["program_not_found", "program_not_executable"]
"""The words of `Reason` that this version knows."""
Reason: TypeAlias = KnownReason | str
"""Why a guest refused."""


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """A sandbox."""

    branch_count: int
    """Branches taken from it."""

    created_at_unix: int
    """When it was requested, in seconds since 1970."""

    hostname: str
    """Its host name."""

    id: str
    """Its name, `sb-` and twelve hexadecimal digits."""

    snapshot_tag: str
    """The snapshot that it was started from; `OWNER/TAG` for another owner's."""

    state: SandboxState
    """Where it stands in its life."""

    cpu_limit: float | None = None
    """How many processors' time its VMM may use; null when it is not limited."""

    error: str | None = None
    """Why it is dead."""

    expires_at_unix: int | None = None
    """When it will be removed unless it is used before, in seconds since 1970."""

    guest_addr: str | None = None
    """The address of its network device, the same in every sandbox; null without a device,
    which sandboxes of snapshots made by an earlier forkd do not have.
    """

    idle_timeout_secs: int | None = None
    """Seconds from its last use to its removal."""

    isolation: Isolation | None = None
    """How far its VMM is kept from the host."""

    memory_limit_mib: int | None = None
    """The most memory that its VMM may have on the host; null when it is not limited."""

    metadata: dict[str, str] = field(default_factory=dict)
    """Its creator's words."""

    netns: str | None = None
    """The network namespace that its VMM has for itself, such as `/proc/4711/ns/net`; null when
    it was not asked for, or is gone with the VMM.
    """

    network: NetworkPolicy | None = None
    """What it may reach."""

    network_refusals: int | None = None
    """How often the network gateway has refused what it wanted to reach, since the daemon was
    started.
    """

    networks: list[Membership] = field(default_factory=list)
    """The private networks that it is a member of, and how other members reach it."""

    owner: str | None = None
    """To whom it belongs."""

    pid: int | None = None
    """Process id of its VMM."""

    preview_url: str | None = None
    """The address of a preview of it, with `{port}` in place of the port; null when the daemon
    was started without previews.
    """

    start_ms: float | None = None
    """From the request until it was ready for use, in milliseconds."""

    start_phases_ms: dict[str, float] = field(default_factory=dict)
    """Milliseconds by phase of the start; together they are `start_ms`."""

    ttl_secs: int | None = None
    """Seconds from its creation to its removal."""


KnownSandboxState: TypeAlias = Literal[
    "starting", "running", "branching", "paused", "rolling_back", "stopping", "dead", "gone"
]
"""The words of `SandboxState` that this version knows."""
SandboxState: TypeAlias = KnownSandboxState | str
"""Where a sandbox stands in its life."""


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A secret that header rules can name. Its value is told to nobody."""

    name: str
    """Its name."""

    set_at_unix: int
    """When it was set, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A snapshot."""

    bootable: bool
    """Whether sandboxes can be started from it now."""

    created_at_unix: int
    """When it was requested, in seconds since 1970."""

    dir: str
    """Where its durable files are."""

    durable: bool
    """Whether it is also on disk and survives a reboot."""

    status: SnapshotStatus
    """Whether it can be used. Sandboxes start from ready ones only."""

    tag: str
    """Its name; `OWNER/TAG` for another owner's."""

    branched_from: str | None = None
    """The sandbox that it was branched from; absent for a template."""

    captured_bytes: int | None = None
    """Bytes of the pages that may have been written since the source's last branch, or since
    its start: they were looked at.
    """

    cpu: CpuModel | None = None

    diff_logical_bytes: int | None = None
    """Bytes of the dirty pages, zeros included. Present as `diff_physical_bytes` is."""

    diff_ms: float | None = None
    """The pause that a diff has, in milliseconds. In mode `diff` it is `pause_ms`; in mode
    `full` the part of it up to the last dirty page, with the resume: dirty pages are copied
    first. Absent in mode `live`, which copies nothing during the pause.
    """

    diff_physical_bytes: int | None = None
    """Bytes that a diff stores: the dirty pages without those of zeros. In modes `diff` and
    `full`, and in mode `live` when `measure_diff` asked for it.
    """

    dirty_bytes: int | None = None
    """Bytes of those that differ from what the layers below hold."""

    error: str | None = None
    """Why it failed."""

    fault_service_max_ms: float | None = None
    """The longest time to serve such a fault, in milliseconds."""

    fault_service_p50_ms: float | None = None
    """Median time to serve such a fault, in milliseconds."""

    faults: int | None = None
    """Write faults of the guest that were served during the capture."""

    held_by_vmm_ms: float | None = None
    """The same by the VMM's own clock, in milliseconds."""

    image: str | None = None
    """The image at the root of its lineage."""

    mem_size_mib: int | None = None
    """Guest RAM, in MiB."""

    mode: BranchMode | None = None

    operation_id: str | None = None
    """The operation that makes it, while its status is `writing`."""

    owner: str | None = None
    """To whom it belongs."""

    parent_tag: str | None = None
    """The snapshot whose layers it builds on."""

    pause_ms: float | None = None
    """The pause window: from the pause request to the confirmed resume, in milliseconds."""

    phases_ms: dict[str, float] = field(default_factory=dict)
    """Milliseconds by phase of the branch."""

    private: bool | None = None
    """Whether it is neither pushed nor exported, nor what is branched from it."""

    ready_ms: float | None = None
    """From the request to the usable snapshot, in milliseconds."""

    shared: bool | None = None
    """Whether all owners may look at it and start from it."""

    stored_bytes: int | None = None
    """Bytes of those that were stored: pages of zeros are only noted."""

    vcpus: int | None = None
    """Virtual CPUs."""

    warning: str | None = None
    """Something that the request asked for and did not get."""


KnownSnapshotStatus: TypeAlias = Literal["writing", "ready", "failed"]
"""The words of `SnapshotStatus` that this version knows."""
SnapshotStatus: TypeAlias = KnownSnapshotStatus | str
"""Whether a snapshot can be used."""


@dataclass(frozen=True, kw_only=True)
class TrustedKey:
    """A key of another daemon."""

    key: str
    """The key."""

    name: str
    """What you call it."""

    trusted_at_unix: int
    """When it was trusted, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """Who answers."""

    api: str
    """Version of the interface."""

    version: str
    """Version of forkd."""

    accelerator: Accelerator | None = None
    """What executes the guests' instructions."""

    isolation: Isolation | None = None
    """How far the VMMs of new sandboxes are kept from the host."""

    preview_url: str | None = None
    """Where previews of sandboxes' ports are: before the host come the port, `-`, the sandbox's
    id and a dot. Null if the daemon has no previews.
    """

    security_boundary: bool | None = None
    """Whether that is a security boundary by its authors' word: `kvm` is, emulation is not."""


@dataclass(frozen=True, kw_only=True)
class BranchAnswer(Snapshot):
    """What a branch gave."""

    children: list[Child] = field(default_factory=list)
    """One entry for each child asked for."""


@dataclass(frozen=True, kw_only=True)
class SnapshotInfo(Snapshot):
    """A snapshot and its place among others."""

    ancestors: list[str]
    """The snapshots that it builds on, nearest first."""

    chain_depth: int
    """How many layers a sandbox started from it maps."""

    dependents: list[str]
    """Snapshots that build on it and sandboxes that were started from it."""

    memory_layer_bytes: int
    """Bytes of its own memory layer."""
