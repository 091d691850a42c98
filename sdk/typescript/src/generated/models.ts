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
  "sandbox.removed" | "snapshot.writing" | "snapshot.ready" | "snapshot.durable" | "snapshot.failed"
  | "snapshot.removed" | "operation.started" | "operation.progress" | "operation.ended" | "lost";
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
}

/** The words of `FileKind` that this version knows. */
export type KnownFileKind = "file" | "directory" | "symlink" | "other";
/** What a thing of a guest's file system is. */
export type FileKind = KnownFileKind | (string & {});

/** A sign of life. */
export interface Health {
  /** Always true: a daemon that is not well does not answer. */
  readonly ok: boolean;
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
export type KnownOperationKind = "template" | "branch" | "compact" | "publish" | "flatten" |
  "restore";
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
  /** The signal that ended it. */
  readonly signal?: number | undefined;
}

/** The words of `ProcessState` that this version knows. */
export type KnownProcessState = "running" | "exited" | "lost";
/** How a background process stands. */
export type ProcessState = KnownProcessState | (string & {});

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
  /** Why it is dead. */
  readonly error?: string | undefined;
  /** When it will be removed unless it is used before, in seconds since 1970. */
  readonly expiresAtUnix?: number | undefined;
  /** Always null: guests have no network device. */
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
  /** To whom it belongs. */
  readonly owner?: string | undefined;
  /** Process id of its VMM. */
  readonly pid?: number | undefined;
  /** From the request until its guest agent had confirmed the renewal, in milliseconds. */
  readonly startMs?: number | undefined;
  /** Seconds from its creation to its removal. */
  readonly ttlSecs?: number | undefined;
}

/** The words of `SandboxState` that this version knows. */
export type KnownSandboxState = "starting" | "running" | "branching" | "paused" | "rolling_back" |
  "stopping" | "dead" | "gone";
/** Where a sandbox stands in its life. */
export type SandboxState = KnownSandboxState | (string & {});

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

/** Who answers. */
export interface Version {
  /** Version of the interface. */
  readonly api: string;
  /** Version of forkd. */
  readonly version: string;
  /** How guests run: `kvm` or `tcg`. */
  readonly accelerator?: string | undefined;
  /** How far the VMMs of new sandboxes are kept from the host. */
  readonly isolation?: Isolation | undefined;
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
  error: perhaps("error", text),
  parts: otherwise("parts", list((value, where) => readEvalPart(value, where)), () => []),
  result: perhaps("result", text),
  stderrBase64: perhaps("stderr_base64", text),
  stdoutBase64: perhaps("stdout_base64", text),
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
});

export const readHealth: Reader<Health> = object("Health", {
  ok: needed("ok", truth),
});

export const readImage: Reader<Image> = object("Image", {
  description: needed("description", text),
  name: needed("name", text),
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
  signal: perhaps("signal", number),
});

export const readSandbox: Reader<Sandbox> = object("Sandbox", {
  branchCount: needed("branch_count", number),
  createdAtUnix: needed("created_at_unix", number),
  hostname: needed("hostname", text),
  id: needed("id", text),
  snapshotTag: needed("snapshot_tag", text),
  state: needed("state", text),
  error: perhaps("error", text),
  expiresAtUnix: perhaps("expires_at_unix", number),
  guestAddr: perhaps("guest_addr", text),
  idleTimeoutSecs: perhaps("idle_timeout_secs", number),
  isolation: perhaps("isolation", text),
  memoryLimitMib: perhaps("memory_limit_mib", number),
  metadata: otherwise("metadata", map(text), () => ({})),
  netns: perhaps("netns", text),
  owner: perhaps("owner", text),
  pid: perhaps("pid", number),
  startMs: perhaps("start_ms", number),
  ttlSecs: perhaps("ttl_secs", number),
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
  readyMs: perhaps("ready_ms", number),
  shared: perhaps("shared", truth),
  storedBytes: perhaps("stored_bytes", number),
  vcpus: perhaps("vcpus", number),
  warning: perhaps("warning", text),
});

export const readVersion: Reader<Version> = object("Version", {
  api: needed("api", text),
  version: needed("version", text),
  accelerator: perhaps("accelerator", text),
  isolation: perhaps("isolation", text),
});
