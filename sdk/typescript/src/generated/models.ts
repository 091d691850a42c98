// Generated from openapi/v1.json by sdk/python/scripts/typescript.py. Do not edit.
/**
 * What the daemon answers with.
 *
 * Fields that this version does not know are left out when an answer is read, and
 * words that it does not know are kept: a newer daemon may say more.
 */

import {
  list,
  map,
  needed,
  number,
  object,
  otherwise,
  perhaps,
  text,
  truth,
  type Reader,
} from "../core/decode.js";

/** The words of `Accelerator` that this version knows. */
export type KnownAccelerator = "kvm" | "tcg";
/** What executes a guest's instructions. Device state is bound to it. */
export type Accelerator = KnownAccelerator | (string & {});

/** What a branch gave. */
export interface BranchAnswer extends Snapshot {
  /** One entry for each child asked for. */
  readonly children: readonly Child[];
}

/** The words of `BranchMode` that this version knows. */
export type KnownBranchMode = "full" | "diff" | "live";
/** Which pages a branch captures, and when. */
export type BranchMode = KnownBranchMode | (string & {});

/** One line of a streamed template build. The last is `snapshot` or `error`. */
export interface BuildEvent {
  /** The build failed. */
  readonly error?: ErrorBody | undefined;
  /** The template is ready. */
  readonly snapshot?: Snapshot | undefined;
  /** A step has begun. */
  readonly step?: string | undefined;
}

/** One child of a branch: exactly one of `sandbox` and `error`. */
export interface Child {
  /** It could not be started. */
  readonly error?: ErrorBody | undefined;
  /** It runs. */
  readonly sandbox?: Sandbox | undefined;
}

/** The words of `CpuModel` that this version knows. */
export type KnownCpuModel = "host" | "x86-64-v2" | "x86-64-v3";
/** What guests see as their processor. Snapshots start where it is the same. */
export type CpuModel = KnownCpuModel | (string & {});

/** The body of every answer that is not a success. */
export interface ErrorBody {
  /** A stable word for programs; one of the catalogue. */
  readonly code: string;
  /** What happened, for people. */
  readonly error: string;
  /** What to do about it. */
  readonly hint: string;
  readonly reason?: Reason | undefined;
}

/** What Python code gave. */
export interface EvalAnswer {
  /** 0 when there is no error, else 1. */
  readonly exitCode: number;
  /** The interpreter ended: variables are gone. */
  readonly stateLost: boolean;
  /** What was printed to standard error. */
  readonly stderr: string;
  /** What was printed. */
  readonly stdout: string;
  /** Its time was over. */
  readonly timedOut: boolean;
  /** What it showed before, in the order in which it did: at most 256 values, 16 MiB in all. */
  readonly displays: readonly EvalDisplay[];
  /** How many values had no room in `displays`. */
  readonly displaysLeftOut?: number | undefined;
  /** Traceback, or what happened to the interpreter. */
  readonly error?: string | undefined;
  /**
   * All forms that the last expression's value has, 4 MiB in all; what is larger is left out. The
   * first is `text/plain`.
   */
  readonly parts: readonly EvalPart[];
  /** `repr` of the last expression; null when there is none or it is `None`. */
  readonly result?: string | undefined;
  /** The exact bytes of standard error, present only when they are not UTF-8. */
  readonly stderrBase64?: string | undefined;
  /** The exact bytes of standard output, present only when they are not UTF-8. */
  readonly stdoutBase64?: string | undefined;
}

/** A value that code showed: by `display`, or as a figure. */
export interface EvalDisplay {
  /** All forms that it has, 4 MiB in all; what is larger is left out. The first is `text/plain`. */
  readonly parts: readonly EvalPart[];
}

/** A form of a value, as its `_repr_mimebundle_`, `_repr_html_`, `_repr_png_` and so on give it. */
export interface EvalPart {
  /**
   * The text, where the type is `text/` something or ends with `json`, `xml` or `javascript`; the
   * bytes as base64 elsewhere.
   */
  readonly data: string;
  /** Its media type. */
  readonly mime: string;
}

/** The words of `EventType` that this version knows. */
export type KnownEventType = "sandbox.started" | "sandbox.state" | "sandbox.dead" |
  "sandbox.refused" | "sandbox.removed" | "snapshot.writing" | "snapshot.ready" | "snapshot.durable"
  | "snapshot.failed" | "snapshot.removed" | "operation.started" | "operation.progress" |
  "operation.ended" | "lost";
/** What an event tells: what it is about, a dot, and what happened to it. */
export type EventType = KnownEventType | (string & {});

/** What a program wrote and how it ended. */
export interface ExecAnswer {
  /** Exit code, or 128 + signal. */
  readonly exitCode: number;
  /** Standard error. */
  readonly stderr: string;
  /** Standard output. */
  readonly stdout: string;
  /** It was killed because its time was over. */
  readonly timedOut: boolean;
  /** The signal that ended it. */
  readonly signal?: number | undefined;
  /** The exact bytes of standard error, present only when they are not UTF-8. */
  readonly stderrBase64?: string | undefined;
  /** The exact bytes of standard output, present only when they are not UTF-8. */
  readonly stdoutBase64?: string | undefined;
}

/** A thing of a sandbox's file system. */
export interface FileEntry {
  /** What it is. */
  readonly kind: FileKind;
  /** Permission bits in octal, such as `0644`. */
  readonly mode: string;
  /** When its content was changed last, in seconds since the Unix epoch. */
  readonly modifiedAtUnix: number;
  /** Last part of its path. Bytes that are not UTF-8 are replaced. */
  readonly name: string;
  /** Absolute path. */
  readonly path: string;
  /** Size of a file's content. */
  readonly sizeBytes: number;
  /** The group that it belongs to, told as the owner is. */
  readonly group?: string | undefined;
  /**
   * The user that it belongs to: a name of the guest, or a number where there is none. Absent from
   * guests of an older forkd.
   */
  readonly owner?: string | undefined;
}

/** The words of `FileKind` that this version knows. */
export type KnownFileKind = "file" | "directory" | "symlink" | "other";
/** What a thing of a guest's file system is. */
export type FileKind = KnownFileKind | (string & {});

/** The words of `FlowOutcome` that this version knows. */
export type KnownFlowOutcome = "ended" | "failed" | "refused";
/** What became of a connection, or of another exchange of packets. */
export type FlowOutcome = KnownFlowOutcome | (string & {});

/** One change to the requests to a host. */
export interface HeaderRule {
  /** What it changes. */
  readonly transform: HeaderTransform;
}

/** What the gateway changes in a request. */
export interface HeaderTransform {
  /**
   * Headers that replace those of the guest. In a value, `${secrets.NAME}` stands for the secret of
   * that name.
   */
  readonly headers: Readonly<Record<string, string>>;
}

/** A sign of life. */
export interface Health {
  /** Always true: a daemon that is not well does not answer. */
  readonly ok: boolean;
}

/** A tag of a registry that names a snapshot. */
export interface HubEntry {
  /** Bytes of all its parts, as they are in the registry. */
  readonly bytes: number;
  /** Digest of what the tag names now. */
  readonly digest: string;
  /** The tag, in full: what a pull takes. */
  readonly reference: string;
}

/** Snapshots that were found in a registry. */
export interface HubListing {
  /** Whether these are all. A search looks at 1000 tags, and for a minute at most. */
  readonly isComplete: boolean;
  /** In the order of the registry. */
  readonly snapshots: readonly HubEntry[];
}

/** A snapshot in a registry. What it consists of is as its signer says. */
export interface HubSnapshot {
  /** `kvm` or `tcg`. */
  readonly accelerator: string;
  /** What the snapshots below were called, the nearest first. */
  readonly ancestors: readonly string[];
  /** Bytes of all its parts, as they are in the registry. */
  readonly bytes: number;
  /** What guests see as their processor. */
  readonly cpuModel: string;
  /** When it was taken, in seconds since 1970. */
  readonly createdAtUnix: number;
  /** How many disk overlays it has. */
  readonly diskOverlays: number;
  /** The image that it needs, which is not in it. */
  readonly image: string;
  /** The key that signed it. */
  readonly key: string;
  /** Guest RAM in MiB. */
  readonly memSizeMib: number;
  /** How many memory layers it has. */
  readonly memoryLayers: number;
  /** Where it is, with its digest. */
  readonly reference: string;
  /** The tag that it had where it was pushed. */
  readonly tag: string;
  /** Whether this daemon trusts that key. */
  readonly trusted: boolean;
  /** Virtual CPUs. */
  readonly vcpus: number;
  /** The version of QEMU. */
  readonly vmmVersion: string;
  /** Why it does not start on this host; absent if it does. */
  readonly problem?: string | undefined;
  /** What you call the key, if it is trusted and not this daemon's own. */
  readonly trustedAs?: string | undefined;
}

/** An image that templates can be built from. */
export interface Image {
  /** One line for people. */
  readonly description: string;
  /** Its name. */
  readonly name: string;
}

/** The words of `Isolation` that this version knows. */
export type KnownIsolation = "none" | "namespaces" | "full";
/** How far a VMM is kept from its host. */
export type Isolation = KnownIsolation | (string & {});

/** The key that this daemon signs artifacts with, and those whose artifacts it imports. */
export interface Keys {
  /** This daemon's key. Others trust it to import what it exports. */
  readonly key: string;
  /** Keys that this daemon trusts, by name. */
  readonly trusted: readonly TrustedKey[];
}

/** That a sandbox is a member of a private network. */
export interface Membership {
  /**
   * The name by which other members reach it. With `name` in the sandbox's metadata, that name in
   * place of the sandbox's id leads to it too.
   */
  readonly hostName: string;
  /** The IPv4 address that other members have for it. */
  readonly ipv4: string;
  /** The IPv6 address that other members have for it. */
  readonly ipv6: string;
  /** The network. */
  readonly network: string;
  /** The sandbox. */
  readonly sandbox: string;
}

/** A private network. Its members reach each other by name, whatever else they may reach. */
export interface Network {
  /** When it was created, in seconds since 1970. */
  readonly createdAtUnix: number;
  /** Its members, by address. */
  readonly members: readonly Membership[];
  /** Its name. */
  readonly name: string;
}

/** What a sandbox has reached, and what it was refused. */
export interface NetworkLog {
  /** Oldest first. */
  readonly entries: readonly NetworkLogEntry[];
  /** How many entries before these the reader has not seen and the log may no longer keep. */
  readonly missing: number;
}

/** One connection, one exchange of datagrams, or one refusal. */
export interface NetworkLogEntry {
  /** Which entry of this sandbox it is, from 1. */
  readonly number: number;
  /** What became of it. */
  readonly outcome: FlowOutcome;
  /** `tcp`, `udp` or `icmp`. A refused name counts as `udp`. */
  readonly protocol: string;
  /** The rule that decided, or what went wrong. */
  readonly reason: string;
  /** When it was written, in milliseconds since 1970. */
  readonly unixMs: number;
  /** The other end; null for a refused name. */
  readonly address?: string | undefined;
  /** Bytes that it got; null for a refusal. */
  readonly bytesIn?: number | undefined;
  /** Bytes that the sandbox sent; null for a refusal. */
  readonly bytesOut?: number | undefined;
  /** From the first packet to the end; null for a refusal. */
  readonly ms?: number | undefined;
  /** The name by which the sandbox knows the address, or which was refused. */
  readonly name?: string | undefined;
  /** The other end's port; 0 for a ping, null for a refused name. */
  readonly port?: number | undefined;
  /** How often the same refusal came again; null if it is the first. */
  readonly repeated?: number | undefined;
}

/**
 * What a sandbox may reach, read in this order: `allowOut`, then `denyOut`, then
 * `allowInternetAccess`. Some addresses stay out of reach whatever it says, such as the host's own
 * and those of metadata services. The last three fields are about
 * [previews](/v1/sandboxes/{id}/ports/{port}/token).
 */
export interface NetworkPolicy {
  /**
   * Whether public addresses that no list names can be reached. By default they can, unless there
   * is an `allowOut`.
   */
  readonly allowInternetAccess?: boolean | undefined;
  /**
   * What can be reached, at most 256 entries: a name, `*.name` for all names below it, an address,
   * a range, or `*`; with a port or a range of ports behind a colon, and `udp://` or `icmp://` in
   * front for what is not TCP.
   */
  readonly allowOut: readonly string[];
  /** Whether whoever knows the address of a preview may open it: no port needs a token. */
  readonly allowPublicTraffic?: boolean | undefined;
  /** What cannot be reached unless `allowOut` names it: addresses and ranges, at most 256. */
  readonly denyOut: readonly string[];
  /**
   * The private networks that it is a member of, at most 16. Left out: none for a new sandbox,
   * those of its source for a child of a branch, and no change for a sandbox that runs. Alone, it
   * says nothing about what else can be reached: that stays, or is inherited.
   */
  readonly join?: readonly string[] | undefined;
  /**
   * The `Host` that servers are told in requests of previews, in place of the preview's own.
   * `${PORT}` stands for the server's port.
   */
  readonly maskRequestHost?: string | undefined;
  /** Ports whose previews need no token, at most 256. */
  readonly publicPorts: readonly number[];
  /**
   * Headers that the gateway sets in every request to a host, by the host's name or `*.name`. A
   * rule allows nothing by itself. At most 64 hosts.
   */
  readonly rules: Readonly<Record<string, readonly HeaderRule[]>>;
}

/** A long request: it can be looked at, waited for and, up to some point, cancelled. */
export interface Operation {
  /** When it began, in seconds since 1970. */
  readonly createdAtUnix: number;
  /** Its name, `op-` and twelve hexadecimal digits. */
  readonly id: string;
  /**
   * What it does: `publish` makes a snapshot durable, `flatten` merges layers or overlays of a
   * running sandbox, `restore` makes missing hot copies after a start of the daemon and checks what
   * is there.
   */
  readonly kind: OperationKind;
  /** How it stands. */
  readonly state: OperationState;
  /** What it is at, or was at last, in words: for people. */
  readonly step: string;
  /** Parts of the step that are done. */
  readonly done?: number | undefined;
  /** When it ended, in seconds since 1970. */
  readonly endedAtUnix?: number | undefined;
  readonly error?: ErrorBody | undefined;
  /** To whom it belongs. */
  readonly owner?: string | undefined;
  /** The sandbox that it works on. */
  readonly sandboxId?: string | undefined;
  /** The snapshot that it makes, or makes durable. */
  readonly snapshotTag?: string | undefined;
  /** All parts of the step. */
  readonly total?: number | undefined;
}

/** The words of `OperationKind` that this version knows. */
export type KnownOperationKind = "template" | "branch" | "compact" | "export" | "import" | "push" |
  "pull" | "publish" | "flatten" | "restore";
/** What an operation does. */
export type OperationKind = KnownOperationKind | (string & {});

/** The words of `OperationState` that this version knows. */
export type KnownOperationState = "running" | "succeeded" | "failed" | "cancelled";
/** How an operation stands. */
export type OperationState = KnownOperationState | (string & {});

/** A sign of life from the guest agent. */
export interface Pong {
  /** How often the agent has been greeted: once per boot and per fork on the way here. */
  readonly epoch: number;
  /** Stretches of our stream that the agent could not read. */
  readonly framesRejected: number;
  /** Always true. */
  readonly pong: boolean;
  /** Requests under way in the guest. */
  readonly requestsRunning: number;
  /** Since the guest's boot, in milliseconds. */
  readonly uptimeMs: number;
}

/** A TCP port that is listened on in a sandbox. All of it comes from the guest. */
export interface Port {
  /** The address that it is listened on. All of them can be reached, loopback addresses too. */
  readonly address: string;
  /** The port. */
  readonly port: number;
  /** The process that listens, if the guest knows it. */
  readonly pid?: number | undefined;
  /** The name of its program. */
  readonly program?: string | undefined;
}

/** A token that opens one port of a sandbox in a browser, or to any client of HTTP. */
export interface PortToken {
  /** When it ends, in seconds since 1970. */
  readonly expiresAtUnix: number;
  /**
   * The host of the address, with its port. Requests to it have the token in the header `X-Forkd-
   * Traffic-Token`.
   */
  readonly host: string;
  /** The token. */
  readonly token: string;
  /** The address of the port, with the token. A browser that opens it gets a cookie instead. */
  readonly url: string;
}

/** A background process. */
export interface Process {
  /** Program and arguments. */
  readonly args: readonly string[];
  /** When it was started, in seconds since the Unix epoch. */
  readonly createdAtUnix: number;
  /** Its id here. */
  readonly id: string;
  /** Offset of the oldest byte of output that is kept. Both streams are counted together. */
  readonly outputFrom: number;
  /** Offset that the next byte of output will have. */
  readonly outputTo: number;
  /** Its id in the guest. */
  readonly pid: number;
  /** How it stands; `lost` when its sandbox or the guest agent is gone. */
  readonly state: ProcessState;
  /** It was killed because its time was over. */
  readonly timedOut: boolean;
  /** Why it is lost. */
  readonly error?: string | undefined;
  /** Exit code, or 128 + signal; present once it has exited. */
  readonly exitCode?: number | undefined;
  /** It was started before this sandbox was forked. What it wrote until then is in the source. */
  readonly inherited?: boolean | undefined;
  /** The signal that ended it. */
  readonly signal?: number | undefined;
}

/** The words of `ProcessState` that this version knows. */
export type KnownProcessState = "running" | "exited" | "lost";
/** How a background process stands. */
export type ProcessState = KnownProcessState | (string & {});

/** What a push has done. */
export interface PushedSnapshot {
  /** Bytes of all its parts. */
  readonly bytes: number;
  /** Bytes of those that the registry had not got. */
  readonly bytesSent: number;
  /** Where the snapshot is now, with its digest. */
  readonly reference: string;
}

/** The words of `Reason` that this version knows. */
export type KnownReason = "program_not_found" | "program_not_executable";
/** Why a guest refused. */
export type Reason = KnownReason | (string & {});

/** A sandbox. */
export interface Sandbox {
  /** Branches taken from it. */
  readonly branchCount: number;
  /** When it was requested, in seconds since 1970. */
  readonly createdAtUnix: number;
  /** Its host name. */
  readonly hostname: string;
  /** Its name, `sb-` and twelve hexadecimal digits. */
  readonly id: string;
  /** The snapshot that it was started from; `OWNER/TAG` for another owner's. */
  readonly snapshotTag: string;
  /** Where it stands in its life. */
  readonly state: SandboxState;
  /** How many processors' time its VMM may use; null when it is not limited. */
  readonly cpuLimit?: number | undefined;
  /** Why it is dead. */
  readonly error?: string | undefined;
  /** When it will be removed unless it is used before, in seconds since 1970. */
  readonly expiresAtUnix?: number | undefined;
  /**
   * The address of its network device, the same in every sandbox; null without a device, which
   * sandboxes of snapshots made by an earlier forkd do not have.
   */
  readonly guestAddr?: string | undefined;
  /** Seconds from its last use to its removal. */
  readonly idleTimeoutSecs?: number | undefined;
  /** How far its VMM is kept from the host. */
  readonly isolation?: Isolation | undefined;
  /** The most memory that its VMM may have on the host; null when it is not limited. */
  readonly memoryLimitMib?: number | undefined;
  /** Its creator's words. */
  readonly metadata: Readonly<Record<string, string>>;
  /**
   * The network namespace that its VMM has for itself, such as `/proc/4711/ns/net`; null when it
   * was not asked for, or is gone with the VMM.
   */
  readonly netns?: string | undefined;
  /** What it may reach. */
  readonly network?: NetworkPolicy | undefined;
  /**
   * How often the network gateway has refused what it wanted to reach, since the daemon was
   * started.
   */
  readonly networkRefusals?: number | undefined;
  /** The private networks that it is a member of, and how other members reach it. */
  readonly networks: readonly Membership[];
  /** To whom it belongs. */
  readonly owner?: string | undefined;
  /** Process id of its VMM. */
  readonly pid?: number | undefined;
  /**
   * The address of a preview of it, with `{port}` in place of the port; null when the daemon was
   * started without previews.
   */
  readonly previewUrl?: string | undefined;
  /** From the request until it was ready for use, in milliseconds. */
  readonly startMs?: number | undefined;
  /** Milliseconds by phase of the start; together they are `startMs`. */
  readonly startPhasesMs: Readonly<Record<string, number>>;
  /** Seconds from its creation to its removal. */
  readonly ttlSecs?: number | undefined;
}

/** The words of `SandboxState` that this version knows. */
export type KnownSandboxState = "starting" | "running" | "branching" | "paused" | "rolling_back" |
  "stopping" | "dead" | "gone";
/** Where a sandbox stands in its life. */
export type SandboxState = KnownSandboxState | (string & {});

/** A secret that header rules can name. Its value is told to nobody. */
export interface Secret {
  /** Its name. */
  readonly name: string;
  /** When it was set, in seconds since 1970. */
  readonly setAtUnix: number;
}

/** A snapshot. */
export interface Snapshot {
  /** Whether sandboxes can be started from it now. */
  readonly bootable: boolean;
  /** When it was requested, in seconds since 1970. */
  readonly createdAtUnix: number;
  /** Where its durable files are. */
  readonly dir: string;
  /** Whether it is also on disk and survives a reboot. */
  readonly durable: boolean;
  /** Whether it can be used. Sandboxes start from ready ones only. */
  readonly status: SnapshotStatus;
  /** Its name; `OWNER/TAG` for another owner's. */
  readonly tag: string;
  /** The sandbox that it was branched from; absent for a template. */
  readonly branchedFrom?: string | undefined;
  /**
   * Bytes of the pages that may have been written since the source's last branch, or since its
   * start: they were looked at.
   */
  readonly capturedBytes?: number | undefined;
  readonly cpu?: CpuModel | undefined;
  /** Bytes of the dirty pages, zeros included. Present as `diffPhysicalBytes` is. */
  readonly diffLogicalBytes?: number | undefined;
  /**
   * The pause that a diff has, in milliseconds. In mode `diff` it is `pauseMs`; in mode `full` the
   * part of it up to the last dirty page, with the resume: dirty pages are copied first. Absent in
   * mode `live`, which copies nothing during the pause.
   */
  readonly diffMs?: number | undefined;
  /**
   * Bytes that a diff stores: the dirty pages without those of zeros. In modes `diff` and `full`,
   * and in mode `live` when `measure_diff` asked for it.
   */
  readonly diffPhysicalBytes?: number | undefined;
  /** Bytes of those that differ from what the layers below hold. */
  readonly dirtyBytes?: number | undefined;
  /** Why it failed. */
  readonly error?: string | undefined;
  /** The longest time to serve such a fault, in milliseconds. */
  readonly faultServiceMaxMs?: number | undefined;
  /** Median time to serve such a fault, in milliseconds. */
  readonly faultServiceP50Ms?: number | undefined;
  /** Write faults of the guest that were served during the capture. */
  readonly faults?: number | undefined;
  /** The same by the VMM's own clock, in milliseconds. */
  readonly heldByVmmMs?: number | undefined;
  /** The image at the root of its lineage. */
  readonly image?: string | undefined;
  /** Guest RAM, in MiB. */
  readonly memSizeMib?: number | undefined;
  readonly mode?: BranchMode | undefined;
  /** The operation that makes it, while its status is `writing`. */
  readonly operationId?: string | undefined;
  /** To whom it belongs. */
  readonly owner?: string | undefined;
  /** The snapshot whose layers it builds on. */
  readonly parentTag?: string | undefined;
  /** The pause window: from the pause request to the confirmed resume, in milliseconds. */
  readonly pauseMs?: number | undefined;
  /** Milliseconds by phase of the branch. */
  readonly phasesMs: Readonly<Record<string, number>>;
  /** Whether it is neither pushed nor exported, nor what is branched from it. */
  readonly private?: boolean | undefined;
  /** From the request to the usable snapshot, in milliseconds. */
  readonly readyMs?: number | undefined;
  /** Whether all owners may look at it and start from it. */
  readonly shared?: boolean | undefined;
  /** Bytes of those that were stored: pages of zeros are only noted. */
  readonly storedBytes?: number | undefined;
  /** Virtual CPUs. */
  readonly vcpus?: number | undefined;
  /** Something that the request asked for and did not get. */
  readonly warning?: string | undefined;
}

/** A snapshot and its place among others. */
export interface SnapshotInfo extends Snapshot {
  /** The snapshots that it builds on, nearest first. */
  readonly ancestors: readonly string[];
  /** How many layers a sandbox started from it maps. */
  readonly chainDepth: number;
  /** Snapshots that build on it and sandboxes that were started from it. */
  readonly dependents: readonly string[];
  /** Bytes of its own memory layer. */
  readonly memoryLayerBytes: number;
}

/** The words of `SnapshotStatus` that this version knows. */
export type KnownSnapshotStatus = "writing" | "ready" | "failed";
/** Whether a snapshot can be used. */
export type SnapshotStatus = KnownSnapshotStatus | (string & {});

/** A key of another daemon. */
export interface TrustedKey {
  /** The key. */
  readonly key: string;
  /** What you call it. */
  readonly name: string;
  /** When it was trusted, in seconds since 1970. */
  readonly trustedAtUnix: number;
}

/** Who answers. */
export interface Version {
  /** Version of the interface. */
  readonly api: string;
  /** Version of forkd. */
  readonly version: string;
  /** What executes the guests' instructions. */
  readonly accelerator?: Accelerator | undefined;
  /** How far the VMMs of new sandboxes are kept from the host. */
  readonly isolation?: Isolation | undefined;
  /**
   * Where previews of sandboxes' ports are: before the host come the port, `-`, the sandbox's id
   * and a dot. Null if the daemon has no previews.
   */
  readonly previewUrl?: string | undefined;
  /** Whether that is a security boundary by its authors' word: `kvm` is, emulation is not. */
  readonly securityBoundary?: boolean | undefined;
}

export const readBranchAnswer: Reader<BranchAnswer> = object("BranchAnswer", {
  bootable: needed("bootable", truth),
  createdAtUnix: needed("created_at_unix", number),
  dir: needed("dir", text),
  durable: needed("durable", truth),
  status: needed("status", text),
  tag: needed("tag", text),
  branchedFrom: perhaps("branched_from", text),
  capturedBytes: perhaps("captured_bytes", number),
  children: otherwise("children", list((value, where) => readChild(value, where)), () => []),
  cpu: perhaps("cpu", text),
  diffLogicalBytes: perhaps("diff_logical_bytes", number),
  diffMs: perhaps("diff_ms", number),
  diffPhysicalBytes: perhaps("diff_physical_bytes", number),
  dirtyBytes: perhaps("dirty_bytes", number),
  error: perhaps("error", text),
  faultServiceMaxMs: perhaps("fault_service_max_ms", number),
  faultServiceP50Ms: perhaps("fault_service_p50_ms", number),
  faults: perhaps("faults", number),
  heldByVmmMs: perhaps("held_by_vmm_ms", number),
  image: perhaps("image", text),
  memSizeMib: perhaps("mem_size_mib", number),
  mode: perhaps("mode", text),
  operationId: perhaps("operation_id", text),
  owner: perhaps("owner", text),
  parentTag: perhaps("parent_tag", text),
  pauseMs: perhaps("pause_ms", number),
  phasesMs: otherwise("phases_ms", map(number), () => ({})),
  private: perhaps("private", truth),
  readyMs: perhaps("ready_ms", number),
  shared: perhaps("shared", truth),
  storedBytes: perhaps("stored_bytes", number),
  vcpus: perhaps("vcpus", number),
  warning: perhaps("warning", text),
});

export const readBuildEvent: Reader<BuildEvent> = object("BuildEvent", {
  error: perhaps("error", (value, where) => readErrorBody(value, where)),
  snapshot: perhaps("snapshot", (value, where) => readSnapshot(value, where)),
  step: perhaps("step", text),
});

export const readChild: Reader<Child> = object("Child", {
  error: perhaps("error", (value, where) => readErrorBody(value, where)),
  sandbox: perhaps("sandbox", (value, where) => readSandbox(value, where)),
});

export const readErrorBody: Reader<ErrorBody> = object("ErrorBody", {
  code: needed("code", text),
  error: needed("error", text),
  hint: needed("hint", text),
  reason: perhaps("reason", text),
});

export const readEvalAnswer: Reader<EvalAnswer> = object("EvalAnswer", {
  exitCode: needed("exit_code", number),
  stateLost: needed("state_lost", truth),
  stderr: needed("stderr", text),
  stdout: needed("stdout", text),
  timedOut: needed("timed_out", truth),
  displays: otherwise("displays", list((value, where) => readEvalDisplay(value, where)), () => []),
  displaysLeftOut: perhaps("displays_left_out", number),
  error: perhaps("error", text),
  parts: otherwise("parts", list((value, where) => readEvalPart(value, where)), () => []),
  result: perhaps("result", text),
  stderrBase64: perhaps("stderr_base64", text),
  stdoutBase64: perhaps("stdout_base64", text),
});

export const readEvalDisplay: Reader<EvalDisplay> = object("EvalDisplay", {
  parts: needed("parts", list((value, where) => readEvalPart(value, where))),
});

export const readEvalPart: Reader<EvalPart> = object("EvalPart", {
  data: needed("data", text),
  mime: needed("mime", text),
});

export const readExecAnswer: Reader<ExecAnswer> = object("ExecAnswer", {
  exitCode: needed("exit_code", number),
  stderr: needed("stderr", text),
  stdout: needed("stdout", text),
  timedOut: needed("timed_out", truth),
  signal: perhaps("signal", number),
  stderrBase64: perhaps("stderr_base64", text),
  stdoutBase64: perhaps("stdout_base64", text),
});

export const readFileEntry: Reader<FileEntry> = object("FileEntry", {
  kind: needed("kind", text),
  mode: needed("mode", text),
  modifiedAtUnix: needed("modified_at_unix", number),
  name: needed("name", text),
  path: needed("path", text),
  sizeBytes: needed("size_bytes", number),
  group: perhaps("group", text),
  owner: perhaps("owner", text),
});

export const readHeaderRule: Reader<HeaderRule> = object("HeaderRule", {
  transform: needed("transform", (value, where) => readHeaderTransform(value, where)),
});

export const readHeaderTransform: Reader<HeaderTransform> = object("HeaderTransform", {
  headers: needed("headers", map(text)),
});

export const readHealth: Reader<Health> = object("Health", {
  ok: needed("ok", truth),
});

export const readHubEntry: Reader<HubEntry> = object("HubEntry", {
  bytes: needed("bytes", number),
  digest: needed("digest", text),
  reference: needed("reference", text),
});

export const readHubListing: Reader<HubListing> = object("HubListing", {
  isComplete: needed("is_complete", truth),
  snapshots: needed("snapshots", list((value, where) => readHubEntry(value, where))),
});

export const readHubSnapshot: Reader<HubSnapshot> = object("HubSnapshot", {
  accelerator: needed("accelerator", text),
  ancestors: needed("ancestors", list(text)),
  bytes: needed("bytes", number),
  cpuModel: needed("cpu_model", text),
  createdAtUnix: needed("created_at_unix", number),
  diskOverlays: needed("disk_overlays", number),
  image: needed("image", text),
  key: needed("key", text),
  memSizeMib: needed("mem_size_mib", number),
  memoryLayers: needed("memory_layers", number),
  reference: needed("reference", text),
  tag: needed("tag", text),
  trusted: needed("trusted", truth),
  vcpus: needed("vcpus", number),
  vmmVersion: needed("vmm_version", text),
  problem: perhaps("problem", text),
  trustedAs: perhaps("trusted_as", text),
});

export const readImage: Reader<Image> = object("Image", {
  description: needed("description", text),
  name: needed("name", text),
});

export const readKeys: Reader<Keys> = object("Keys", {
  key: needed("key", text),
  trusted: needed("trusted", list((value, where) => readTrustedKey(value, where))),
});

export const readMembership: Reader<Membership> = object("Membership", {
  hostName: needed("host_name", text),
  ipv4: needed("ipv4", text),
  ipv6: needed("ipv6", text),
  network: needed("network", text),
  sandbox: needed("sandbox", text),
});

export const readNetwork: Reader<Network> = object("Network", {
  createdAtUnix: needed("created_at_unix", number),
  members: needed("members", list((value, where) => readMembership(value, where))),
  name: needed("name", text),
});

export const readNetworkLog: Reader<NetworkLog> = object("NetworkLog", {
  entries: needed("entries", list((value, where) => readNetworkLogEntry(value, where))),
  missing: needed("missing", number),
});

export const readNetworkLogEntry: Reader<NetworkLogEntry> = object("NetworkLogEntry", {
  number: needed("number", number),
  outcome: needed("outcome", text),
  protocol: needed("protocol", text),
  reason: needed("reason", text),
  unixMs: needed("unix_ms", number),
  address: perhaps("address", text),
  bytesIn: perhaps("bytes_in", number),
  bytesOut: perhaps("bytes_out", number),
  ms: perhaps("ms", number),
  name: perhaps("name", text),
  port: perhaps("port", number),
  repeated: perhaps("repeated", number),
});

export const readNetworkPolicy: Reader<NetworkPolicy> = object("NetworkPolicy", {
  allowInternetAccess: perhaps("allow_internet_access", truth),
  allowOut: otherwise("allow_out", list(text), () => []),
  allowPublicTraffic: perhaps("allow_public_traffic", truth),
  denyOut: otherwise("deny_out", list(text), () => []),
  join: perhaps("join", list(text)),
  maskRequestHost: perhaps("mask_request_host", text),
  publicPorts: otherwise("public_ports", list(number), () => []),
  rules: otherwise("rules", map(list((value, where) => readHeaderRule(value, where))), () => ({})),
});

export const readOperation: Reader<Operation> = object("Operation", {
  createdAtUnix: needed("created_at_unix", number),
  id: needed("id", text),
  kind: needed("kind", text),
  state: needed("state", text),
  step: needed("step", text),
  done: perhaps("done", number),
  endedAtUnix: perhaps("ended_at_unix", number),
  error: perhaps("error", (value, where) => readErrorBody(value, where)),
  owner: perhaps("owner", text),
  sandboxId: perhaps("sandbox_id", text),
  snapshotTag: perhaps("snapshot_tag", text),
  total: perhaps("total", number),
});

export const readPong: Reader<Pong> = object("Pong", {
  epoch: needed("epoch", number),
  framesRejected: needed("frames_rejected", number),
  pong: needed("pong", truth),
  requestsRunning: needed("requests_running", number),
  uptimeMs: needed("uptime_ms", number),
});

export const readPort: Reader<Port> = object("Port", {
  address: needed("address", text),
  port: needed("port", number),
  pid: perhaps("pid", number),
  program: perhaps("program", text),
});

export const readPortToken: Reader<PortToken> = object("PortToken", {
  expiresAtUnix: needed("expires_at_unix", number),
  host: needed("host", text),
  token: needed("token", text),
  url: needed("url", text),
});

export const readProcess: Reader<Process> = object("Process", {
  args: needed("args", list(text)),
  createdAtUnix: needed("created_at_unix", number),
  id: needed("id", text),
  outputFrom: needed("output_from", number),
  outputTo: needed("output_to", number),
  pid: needed("pid", number),
  state: needed("state", text),
  timedOut: needed("timed_out", truth),
  error: perhaps("error", text),
  exitCode: perhaps("exit_code", number),
  inherited: perhaps("inherited", truth),
  signal: perhaps("signal", number),
});

export const readPushedSnapshot: Reader<PushedSnapshot> = object("PushedSnapshot", {
  bytes: needed("bytes", number),
  bytesSent: needed("bytes_sent", number),
  reference: needed("reference", text),
});

export const readSandbox: Reader<Sandbox> = object("Sandbox", {
  branchCount: needed("branch_count", number),
  createdAtUnix: needed("created_at_unix", number),
  hostname: needed("hostname", text),
  id: needed("id", text),
  snapshotTag: needed("snapshot_tag", text),
  state: needed("state", text),
  cpuLimit: perhaps("cpu_limit", number),
  error: perhaps("error", text),
  expiresAtUnix: perhaps("expires_at_unix", number),
  guestAddr: perhaps("guest_addr", text),
  idleTimeoutSecs: perhaps("idle_timeout_secs", number),
  isolation: perhaps("isolation", text),
  memoryLimitMib: perhaps("memory_limit_mib", number),
  metadata: otherwise("metadata", map(text), () => ({})),
  netns: perhaps("netns", text),
  network: perhaps("network", (value, where) => readNetworkPolicy(value, where)),
  networkRefusals: perhaps("network_refusals", number),
  networks: otherwise("networks", list((value, where) => readMembership(value, where)), () => []),
  owner: perhaps("owner", text),
  pid: perhaps("pid", number),
  previewUrl: perhaps("preview_url", text),
  startMs: perhaps("start_ms", number),
  startPhasesMs: otherwise("start_phases_ms", map(number), () => ({})),
  ttlSecs: perhaps("ttl_secs", number),
});

export const readSecret: Reader<Secret> = object("Secret", {
  name: needed("name", text),
  setAtUnix: needed("set_at_unix", number),
});

export const readSnapshot: Reader<Snapshot> = object("Snapshot", {
  bootable: needed("bootable", truth),
  createdAtUnix: needed("created_at_unix", number),
  dir: needed("dir", text),
  durable: needed("durable", truth),
  status: needed("status", text),
  tag: needed("tag", text),
  branchedFrom: perhaps("branched_from", text),
  capturedBytes: perhaps("captured_bytes", number),
  cpu: perhaps("cpu", text),
  diffLogicalBytes: perhaps("diff_logical_bytes", number),
  diffMs: perhaps("diff_ms", number),
  diffPhysicalBytes: perhaps("diff_physical_bytes", number),
  dirtyBytes: perhaps("dirty_bytes", number),
  error: perhaps("error", text),
  faultServiceMaxMs: perhaps("fault_service_max_ms", number),
  faultServiceP50Ms: perhaps("fault_service_p50_ms", number),
  faults: perhaps("faults", number),
  heldByVmmMs: perhaps("held_by_vmm_ms", number),
  image: perhaps("image", text),
  memSizeMib: perhaps("mem_size_mib", number),
  mode: perhaps("mode", text),
  operationId: perhaps("operation_id", text),
  owner: perhaps("owner", text),
  parentTag: perhaps("parent_tag", text),
  pauseMs: perhaps("pause_ms", number),
  phasesMs: otherwise("phases_ms", map(number), () => ({})),
  private: perhaps("private", truth),
  readyMs: perhaps("ready_ms", number),
  shared: perhaps("shared", truth),
  storedBytes: perhaps("stored_bytes", number),
  vcpus: perhaps("vcpus", number),
  warning: perhaps("warning", text),
});

export const readSnapshotInfo: Reader<SnapshotInfo> = object("SnapshotInfo", {
  ancestors: needed("ancestors", list(text)),
  bootable: needed("bootable", truth),
  chainDepth: needed("chain_depth", number),
  createdAtUnix: needed("created_at_unix", number),
  dependents: needed("dependents", list(text)),
  dir: needed("dir", text),
  durable: needed("durable", truth),
  memoryLayerBytes: needed("memory_layer_bytes", number),
  status: needed("status", text),
  tag: needed("tag", text),
  branchedFrom: perhaps("branched_from", text),
  capturedBytes: perhaps("captured_bytes", number),
  cpu: perhaps("cpu", text),
  diffLogicalBytes: perhaps("diff_logical_bytes", number),
  diffMs: perhaps("diff_ms", number),
  diffPhysicalBytes: perhaps("diff_physical_bytes", number),
  dirtyBytes: perhaps("dirty_bytes", number),
  error: perhaps("error", text),
  faultServiceMaxMs: perhaps("fault_service_max_ms", number),
  faultServiceP50Ms: perhaps("fault_service_p50_ms", number),
  faults: perhaps("faults", number),
  heldByVmmMs: perhaps("held_by_vmm_ms", number),
  image: perhaps("image", text),
  memSizeMib: perhaps("mem_size_mib", number),
  mode: perhaps("mode", text),
  operationId: perhaps("operation_id", text),
  owner: perhaps("owner", text),
  parentTag: perhaps("parent_tag", text),
  pauseMs: perhaps("pause_ms", number),
  phasesMs: otherwise("phases_ms", map(number), () => ({})),
  private: perhaps("private", truth),
  readyMs: perhaps("ready_ms", number),
  shared: perhaps("shared", truth),
  storedBytes: perhaps("stored_bytes", number),
  vcpus: perhaps("vcpus", number),
  warning: perhaps("warning", text),
});

export const readTrustedKey: Reader<TrustedKey> = object("TrustedKey", {
  key: needed("key", text),
  name: needed("name", text),
  trustedAtUnix: needed("trusted_at_unix", number),
});

export const readVersion: Reader<Version> = object("Version", {
  api: needed("api", text),
  version: needed("version", text),
  accelerator: perhaps("accelerator", text),
  isolation: perhaps("isolation", text),
  previewUrl: perhaps("preview_url", text),
  securityBoundary: perhaps("security_boundary", truth),
});
