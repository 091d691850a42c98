/** One function for each route: its arguments as a `Call`. */

import * as models from "../generated/models.js";
import { many, nothing, one, plain, raw, type Call, type Content } from "./call.js";
import { ForkdError } from "./failure.js";
import { commandResult, execution, type CommandResult, type Execution } from "./result.js";

/** Text for a shell, or program and arguments. */
export type Command = string | readonly string[];

/** How a branch is taken. */
export type Mode = models.KnownBranchMode;

/** The longest time that the daemon lets a command or code run. */
const COMMAND_SECS_MAX = 86_400;

/** What an answer may take beyond the time that the guest is given. */
const MARGIN_SECS = 30;

/** The daemon holds a request to wait at most this long. */
export const WAIT_SECS_MAX = 30;

const STREAM = { accept: "text/event-stream" };
const BYTES = { "content-type": "application/octet-stream" };

/** What a sandbox may be started with. */
export interface StartOptions {
  /** Kept with the sandbox; lists can be filtered by it. */
  metadata?: Readonly<Record<string, string>> | undefined;
  /** The daemon removes it after this time. */
  ttlSecs?: number | undefined;
  /** The daemon removes it when it was not used for this time. */
  idleTimeoutSecs?: number | undefined;
  /** How much of the host's memory its VMM may have at most. */
  memoryLimitMib?: number | undefined;
  /** Its VMM is cut off from the host's network. */
  perChildNetns?: boolean | undefined;
  /** What it may reach; by default public addresses, or what the snapshot's source could. */
  network?: NetworkOptions | undefined;
}

/** What a sandbox may reach, read in this order: `allowOut`, `denyOut`, `allowInternetAccess`. */
export interface NetworkOptions {
  /** Whether other public addresses can be reached; by default unless there is an `allowOut`. */
  allowInternetAccess?: boolean | undefined;
  /** Names, `*.name`, addresses, ranges, or `*`; with `:PORT` behind or `udp://` in front. */
  allowOut?: readonly string[] | undefined;
  /** Addresses and ranges. */
  denyOut?: readonly string[] | undefined;
  /**
   * Headers that are set in every request to a host, by its name or `*.name`. In a value,
   * `${secrets.NAME}` stands for a secret.
   */
  rules?: Readonly<Record<string, readonly models.HeaderRule[]>> | undefined;
  /**
   * Private networks that it is a member of. Left out: none for a new sandbox, those of its source
   * for a child, no change for one that runs. Alone, it says nothing about what else it may reach.
   */
  join?: readonly string[] | undefined;
  /** Whether previews of all its ports need no token. */
  allowPublicTraffic?: boolean | undefined;
  /** Ports whose previews need no token. */
  publicPorts?: readonly number[] | undefined;
  /** The host that its servers are told in requests of previews, as `localhost:${PORT}`. */
  maskRequestHost?: string | undefined;
}

/** How a snapshot is removed. */
export interface RemoveOptions {
  /** With the sandboxes and snapshots that depend on it. */
  cascade?: boolean | undefined;
  /** Its tag only, so that what depends on it keeps working. */
  force?: boolean | undefined;
}

/** How a template is built. */
export interface BuildOptions {
  /** What is booted: an image of the daemon. */
  image?: string | undefined;
  /** An OCI image in its place, such as `python:3.12-slim`. */
  from?: string | undefined;
  memSizeMib?: number | undefined;
  vcpus?: number | undefined;
  /** What guests see as their processor; snapshots of a level start on other hosts that have it. */
  cpu?: models.KnownCpuModel | undefined;
  /** Program and arguments, run before the freeze. */
  warm?: readonly string[] | undefined;
  /** Neither push nor export it, nor what is branched from it. */
  private?: boolean | undefined;
  /** False: answer at once; the snapshot's `wait` waits for its end. */
  wait?: boolean | undefined;
}

/** How a branch is taken. */
export interface BranchOptions {
  /** Children to start at once; none by default. */
  n?: number | undefined;
  mode?: Mode | undefined;
  /** Tag of the snapshot. */
  tag?: string | undefined;
  /** False: answer while the snapshot is still written; without children then. */
  wait?: boolean | undefined;
  /** Report what a diff would have cost. */
  measureDiff?: boolean | undefined;
  /** What the children may reach; by default what this sandbox may. */
  network?: NetworkOptions | undefined;
  /** Neither push nor export the snapshot, nor what is branched from it. */
  private?: boolean | undefined;
}

/** How a program runs. */
export interface ProgramOptions {
  /** Added to the default environment. */
  env?: Readonly<Record<string, string>> | undefined;
  /** Working directory. */
  cwd?: string | undefined;
  /** As whom it runs: `USER` or `USER:GROUP`, by name or number; by default as the image says. */
  user?: string | undefined;
}

/** Which events are told. */
export interface EventFilter {
  /** Those after the event with this id. */
  after?: string | undefined;
  /** The beginning of their types, such as `sandbox.`. */
  type?: string | undefined;
  /** Those of this sandbox. */
  sandbox?: string | undefined;
  /** Those of this snapshot. */
  snapshot?: string | undefined;
}

/** Program and arguments: text is for a shell. */
export function argv(command: Command): readonly string[] {
  return typeof command === "string" ? ["/bin/sh", "-c", command] : [...command];
}

export function path(...segments: string[]): string {
  return segments.map(segment).join("");
}

function segment(name: string): string {
  // An URL takes these for steps, however they are written.
  if (name === "." || name === ".." || name === "") throw new ForkdError(`\`${name}\` is no name`);
  return `/${encodeURIComponent(name)}`;
}

/** Without what is undefined. */
function given<T>(fields: Readonly<Record<string, T | undefined>>): Record<string, T> {
  const found: Record<string, T> = {};
  for (const [name, value] of Object.entries(fields)) {
    if (value !== undefined) found[name] = value;
  }
  return found;
}

/** An object with anything in it; undefined for an empty one. */
function filled<T extends object>(fields: T | undefined): T | undefined {
  return fields === undefined || Object.keys(fields).length === 0 ? undefined : fields;
}

/** Whole seconds, at least 1. */
function whole(secs: number | undefined): number | undefined {
  return secs === undefined ? undefined : Math.max(1, Math.ceil(secs));
}

function limit(secs: number | null): number {
  return Math.min(whole(secs ?? COMMAND_SECS_MAX) ?? 1, COMMAND_SECS_MAX);
}

function started(options: StartOptions): Record<string, unknown> {
  return given<unknown>({
    metadata: filled(options.metadata),
    ttl_secs: whole(options.ttlSecs),
    idle_timeout_secs: whole(options.idleTimeoutSecs),
    memory_limit_mib: options.memoryLimitMib,
    per_child_netns: options.perChildNetns || undefined,
    network: options.network === undefined ? undefined : policy(options.network),
  });
}

function policy(network: NetworkOptions): Record<string, unknown> {
  return given<unknown>({
    allow_internet_access: network.allowInternetAccess,
    allow_out: filled(network.allowOut),
    deny_out: filled(network.denyOut),
    rules: filled(network.rules),
    join: network.join,
    allow_public_traffic: network.allowPublicTraffic,
    public_ports: filled(network.publicPorts),
    mask_request_host: network.maskRequestHost,
  });
}

// The daemon.

export function healthz(): Call<models.Health> {
  return { method: "GET", path: "/healthz", parse: one(models.readHealth) };
}

export function version(): Call<models.Version> {
  return { method: "GET", path: "/version", parse: one(models.readVersion) };
}

export function metrics(): Call<string> {
  return { method: "GET", path: "/metrics", parse: plain };
}

export function images(): Call<readonly models.Image[]> {
  return { method: "GET", path: "/v1/images", parse: many(models.readImage) };
}

// Snapshots.

export function snapshots(): Call<readonly models.Snapshot[]> {
  return { method: "GET", path: "/v1/snapshots", parse: many(models.readSnapshot) };
}

export function snapshotInfo(tag: string): Call<models.SnapshotInfo> {
  const parse = one(models.readSnapshotInfo);
  return { method: "GET", path: path("v1", "snapshots", tag, "info"), parse };
}

export function build(tag: string, options: BuildOptions): Call<models.Snapshot> {
  const body = given<unknown>({
    tag,
    image: options.image,
    from: options.from,
    mem_size_mib: options.memSizeMib,
    vcpus: options.vcpus,
    cpu: options.cpu,
    warm: options.warm?.length ? options.warm : undefined,
    private: options.private || undefined,
    wait: options.wait === false ? false : undefined,
  });
  const parse = one(models.readSnapshot);
  return { method: "POST", path: "/v1/snapshots", parse, body, timeoutSecs: null };
}

export function compact(tag: string, to: string, wait: boolean): Call<models.Snapshot> {
  return {
    method: "POST",
    path: path("v1", "snapshots", tag, "compact"),
    parse: one(models.readSnapshot),
    body: wait ? { to } : { to, wait },
    timeoutSecs: null,
  };
}

export function exportArtifact(tag: string): Call<void> {
  const parse = nothing;
  return { method: "GET", path: path("v1", "snapshots", tag, "artifact"), parse, timeoutSecs: null };
}

/** How a file is imported. */
export interface ImportOptions {
  /** Tag of the snapshot; the one that it had by default. */
  tag?: string | undefined;
  /** Import it whoever signed it; a forged file can attack the host. */
  trustOnce?: boolean | undefined;
}

export function importArtifact(content: Content, options: ImportOptions): Call<models.Snapshot> {
  const query = given({ tag: options.tag, trust_once: options.trustOnce ? "true" : undefined });
  return {
    method: "POST",
    path: "/v1/artifacts",
    parse: one(models.readSnapshot),
    query,
    content,
    headers: BYTES,
    timeoutSecs: null,
  };
}

export function push(tag: string, reference: string): Call<models.PushedSnapshot> {
  return {
    method: "POST",
    path: path("v1", "snapshots", tag, "push"),
    parse: one(models.readPushedSnapshot),
    body: { reference },
    timeoutSecs: null,
  };
}

export function pull(reference: string, options: ImportOptions): Call<models.Snapshot> {
  return {
    method: "POST",
    path: "/v1/pulls",
    parse: one(models.readSnapshot),
    body: given<string | boolean>({ reference, tag: options.tag, trust_once: options.trustOnce ? true : undefined }),
    timeoutSecs: null,
  };
}

export function hubInfo(reference: string): Call<models.HubSnapshot> {
  return {
    method: "GET",
    path: "/v1/hub/snapshot",
    parse: one(models.readHubSnapshot),
    query: { reference },
  };
}

export function hubSearch(registry: string, name: string): Call<models.HubListing> {
  return {
    method: "GET",
    path: "/v1/hub/snapshots",
    parse: one(models.readHubListing),
    query: { registry, name },
    timeoutSecs: null,
  };
}

export function keys(): Call<models.Keys> {
  return { method: "GET", path: "/v1/keys", parse: one(models.readKeys) };
}

export function trustKey(name: string, key: string): Call<void> {
  return { method: "PUT", path: path("v1", "keys", name), parse: nothing, body: { key } };
}

export function removeKey(name: string): Call<void> {
  return { method: "DELETE", path: path("v1", "keys", name), parse: nothing };
}

export function removeSnapshot(tag: string, options: RemoveOptions): Call<void> {
  const query = given({
    cascade: options.cascade ? "true" : undefined,
    force: options.force ? "true" : undefined,
  });
  return {
    method: "DELETE",
    path: path("v1", "snapshots", tag),
    parse: nothing,
    query,
    timeoutSecs: null,
  };
}

// Sandboxes.

export function sandboxes(
  metadata: Readonly<Record<string, string>> = {},
): Call<readonly models.Sandbox[]> {
  const wanted = Object.entries(metadata).map(([key, value]) => [`metadata.${key}`, value]);
  const query = Object.fromEntries(wanted) as Record<string, string>;
  return { method: "GET", path: "/v1/sandboxes", parse: many(models.readSandbox), query };
}

export function fork(
  tag: string,
  n: number,
  options: StartOptions,
): Call<readonly models.Sandbox[]> {
  return {
    method: "POST",
    path: "/v1/sandboxes",
    parse: many(models.readSandbox),
    body: { snapshot_tag: tag, n, ...started(options) },
    timeoutSecs: null,
  };
}

function ofSandbox(id: string, ...more: string[]): string {
  return path("v1", "sandboxes", id, ...more);
}

export function sandbox(id: string): Call<models.Sandbox> {
  return { method: "GET", path: ofSandbox(id), parse: one(models.readSandbox) };
}

export function removeSandbox(id: string): Call<void> {
  return { method: "DELETE", path: ofSandbox(id), parse: nothing };
}

export function branch(id: string, options: BranchOptions): Call<models.BranchAnswer> {
  const body = given<unknown>({
    n: options.n ?? 0,
    mode: options.mode,
    tag: options.tag,
    wait: options.wait ?? true,
    measure_diff: options.measureDiff || undefined,
    private: options.private || undefined,
    network: options.network === undefined ? undefined : policy(options.network),
  });
  const parse = one(models.readBranchAnswer);
  return { method: "POST", path: ofSandbox(id, "branch"), parse, body, timeoutSecs: null };
}

export function secrets(): Call<readonly models.Secret[]> {
  return { method: "GET", path: "/v1/secrets", parse: many(models.readSecret) };
}

export function setSecret(name: string, value: string): Call<void> {
  const content = new TextEncoder().encode(value);
  return { method: "PUT", path: path("v1", "secrets", name), parse: nothing, content, headers: BYTES };
}

export function removeSecret(name: string): Call<void> {
  return { method: "DELETE", path: path("v1", "secrets", name), parse: nothing };
}

export function network(id: string): Call<models.NetworkPolicy> {
  return { method: "GET", path: ofSandbox(id, "network"), parse: one(models.readNetworkPolicy) };
}

export function networkLog(id: string, after?: number): Call<models.NetworkLog> {
  const query = given({ after: after?.toString() });
  return {
    method: "GET",
    path: ofSandbox(id, "network", "log"),
    parse: one(models.readNetworkLog),
    query,
  };
}

export function setNetwork(id: string, options: NetworkOptions): Call<models.Sandbox> {
  return {
    method: "PUT",
    path: ofSandbox(id, "network"),
    parse: one(models.readSandbox),
    body: policy(options),
  };
}

export function createPortToken(
  id: string,
  port: number,
  ttlSecs?: number,
): Call<models.PortToken> {
  return {
    method: "POST",
    path: ofSandbox(id, "ports", String(port), "token"),
    parse: one(models.readPortToken),
    body: given<unknown>({ ttl_secs: ttlSecs }),
  };
}

export function revokePortTokens(id: string, port: number): Call<void> {
  return {
    method: "DELETE",
    path: ofSandbox(id, "ports", String(port), "token"),
    parse: nothing,
  };
}

export function ports(id: string): Call<readonly models.Port[]> {
  return { method: "GET", path: ofSandbox(id, "ports"), parse: many(models.readPort) };
}

/** It becomes a byte stream. */
export function connectPort(id: string, port: number): Call<void> {
  const headers = { connection: "Upgrade", upgrade: "tcp" };
  return { method: "GET", path: ofSandbox(id, "ports", String(port)), parse: nothing, headers };
}

export function pause(id: string): Call<models.Sandbox> {
  return { method: "POST", path: ofSandbox(id, "pause"), parse: one(models.readSandbox) };
}

export function resume(id: string): Call<models.Sandbox> {
  return { method: "POST", path: ofSandbox(id, "resume"), parse: one(models.readSandbox) };
}

export function rollback(id: string, tag: string): Call<models.Sandbox> {
  return {
    method: "POST",
    path: ofSandbox(id, "rollback"),
    parse: one(models.readSandbox),
    body: { snapshot_tag: tag },
    timeoutSecs: null,
  };
}

export function ping(id: string): Call<models.Pong> {
  return { method: "POST", path: ofSandbox(id, "ping"), parse: one(models.readPong) };
}

export function logs(id: string): Call<Uint8Array> {
  return { method: "GET", path: ofSandbox(id, "logs"), parse: raw };
}

export function evalCode(id: string, code: string, secs: number | null): Call<Execution> {
  const timeout = limit(secs);
  return {
    method: "POST",
    path: ofSandbox(id, "eval"),
    parse: (answer) => execution(one(models.readEvalAnswer)(answer)),
    body: { code, timeout_secs: timeout },
    timeoutSecs: timeout + MARGIN_SECS,
  };
}

export function execCommand(
  id: string,
  command: Command,
  options: ProgramOptions & { stdin?: string | undefined; stdinBase64?: string | undefined },
  secs: number | null,
): Call<CommandResult> {
  const args = argv(command);
  const timeout = limit(secs);
  return {
    method: "POST",
    path: ofSandbox(id, "exec"),
    parse: (answer) => commandResult(args, one(models.readExecAnswer)(answer)),
    body: given<unknown>({
      args,
      env: filled(options.env),
      cwd: options.cwd,
      user: options.user,
      stdin: options.stdin,
      stdin_base64: options.stdinBase64,
      timeout_secs: timeout,
    }),
    timeoutSecs: timeout + MARGIN_SECS,
  };
}

// Processes of a sandbox.

function ofProcess(id: string, processId: string, ...more: string[]): string {
  return ofSandbox(id, "processes", processId, ...more);
}

/** The size of a terminal. */
export interface TerminalSize {
  readonly rows: number;
  readonly cols: number;
}

export function startProcess(
  id: string,
  command: Command,
  options: ProgramOptions & {
    stdin?: boolean | undefined;
    timeoutSecs?: number | undefined;
    tty?: TerminalSize | undefined;
    holdOutput?: boolean | undefined;
  },
): Call<models.Process> {
  const body = given<unknown>({
    args: argv(command),
    env: filled(options.env),
    cwd: options.cwd,
    user: options.user,
    stdin: options.stdin || undefined,
    timeout_secs: whole(options.timeoutSecs),
    hold_output: options.holdOutput || undefined,
    tty: options.tty && { rows: options.tty.rows, cols: options.tty.cols },
  });
  const parse = one(models.readProcess);
  return { method: "POST", path: ofSandbox(id, "processes"), parse, body };
}

export function processes(id: string): Call<readonly models.Process[]> {
  const parse = many(models.readProcess);
  return { method: "GET", path: ofSandbox(id, "processes"), parse };
}

export function process(id: string, processId: string): Call<models.Process> {
  return { method: "GET", path: ofProcess(id, processId), parse: one(models.readProcess) };
}

export function removeProcess(id: string, processId: string): Call<void> {
  return { method: "DELETE", path: ofProcess(id, processId), parse: nothing };
}

export function signalProcess(id: string, processId: string, signal: string | number): Call<void> {
  const word = typeof signal === "string" ? signal.replace(/^SIG/, "") : signal;
  const body = { signal: word };
  return { method: "POST", path: ofProcess(id, processId, "signal"), parse: nothing, body };
}

export function writeStdin(
  id: string,
  processId: string,
  content: Uint8Array,
  eof: boolean,
): Call<void> {
  return {
    method: "POST",
    path: ofProcess(id, processId, "stdin"),
    parse: nothing,
    query: eof ? { eof: "true" } : {},
    content,
    headers: BYTES,
    // The program takes it when it likes.
    timeoutSecs: null,
    patient: true,
  };
}

export function resizeProcess(id: string, processId: string, size: TerminalSize): Call<void> {
  const body = { rows: size.rows, cols: size.cols };
  return { method: "POST", path: ofProcess(id, processId, "resize"), parse: nothing, body };
}

export function processOutput(
  id: string,
  processId: string,
  offset: number | undefined,
): Call<void> {
  const query = given({ from: offset?.toString() });
  const output = ofProcess(id, processId, "output");
  return { method: "GET", path: output, parse: nothing, query, headers: STREAM };
}

// Files of a sandbox.

function ofFiles(id: string, ...more: string[]): string {
  return ofSandbox(id, "files", ...more);
}

export function readFile(id: string, file: string): Call<Uint8Array> {
  return { method: "GET", path: ofFiles(id), parse: raw, query: { path: file } };
}

/** A file that comes piece by piece may have so many bytes. */
const STREAMED_BYTES_MAX = 16 * 2 ** 30;

/** The same, piece by piece, and as large as there can be. */
export function streamFile(id: string, file: string): Call<void> {
  const query = { path: file, max_bytes: String(STREAMED_BYTES_MAX) };
  return { method: "GET", path: ofFiles(id), parse: nothing, query };
}

export function writeFile(
  id: string,
  file: string,
  content: Content,
  mode: number | undefined,
  user: string | undefined,
): Call<void> {
  const query = given({ path: file, mode: mode?.toString(8).padStart(4, "0"), user });
  return { method: "PUT", path: ofFiles(id), parse: nothing, query, content, headers: BYTES };
}

export function removeFile(id: string, file: string, recursive: boolean): Call<void> {
  const query = given({ path: file, recursive: recursive ? "true" : undefined });
  return { method: "DELETE", path: ofFiles(id), parse: nothing, query };
}

export function listFiles(id: string, file: string): Call<readonly models.FileEntry[]> {
  const parse = many(models.readFileEntry);
  return { method: "GET", path: ofFiles(id, "list"), parse, query: { path: file } };
}

export function statFile(id: string, file: string): Call<models.FileEntry> {
  const parse = one(models.readFileEntry);
  return { method: "GET", path: ofFiles(id, "stat"), parse, query: { path: file } };
}

export function makeDir(id: string, file: string, user: string | undefined): Call<void> {
  const query = given({ path: file, user });
  return { method: "POST", path: ofFiles(id, "mkdir"), parse: nothing, query };
}

export function watchFiles(id: string, file: string, recursive: boolean): Call<void> {
  const query = given({ path: file, recursive: recursive ? "true" : undefined });
  const headers = STREAM;
  return { method: "GET", path: ofFiles(id, "watch"), parse: nothing, query, headers };
}

// Operations and events.

export function operations(state: string | undefined): Call<readonly models.Operation[]> {
  const parse = many(models.readOperation);
  return { method: "GET", path: "/v1/operations", parse, query: given({ state }) };
}

export function operation(id: string): Call<models.Operation> {
  const parse = one(models.readOperation);
  return { method: "GET", path: path("v1", "operations", id), parse };
}

export function waitOperation(id: string, secs: number): Call<models.Operation> {
  return {
    method: "GET",
    path: path("v1", "operations", id, "wait"),
    parse: one(models.readOperation),
    query: { timeout_secs: String(Math.min(whole(secs) ?? 1, WAIT_SECS_MAX)) },
  };
}

export function cancelOperation(id: string): Call<void> {
  return { method: "POST", path: path("v1", "operations", id, "cancel"), parse: nothing };
}

export function events(filter: EventFilter): Call<void> {
  const { after, type, sandbox, snapshot } = filter;
  return {
    method: "GET",
    path: "/v1/events",
    parse: nothing,
    query: given({ type, sandbox, snapshot }),
    headers: { ...STREAM, ...given({ "last-event-id": after }) },
  };
}
