/** Sandboxes, snapshots and what a branch gives: they refer to each other. */

import "./core/dispose.js";
import type { Client } from "./client.js";
import { Commands } from "./commands.js";
import { errorOfBody } from "./core/call.js";
import { ForkdError, NotUnderstoodError } from "./core/failure.js";
import * as flow from "./core/flow.js";
import * as route from "./core/networks.js";
import * as request from "./core/request.js";
import type {
  BranchOptions,
  Mode,
  NetworkOptions,
  RemoveOptions,
  StartOptions,
} from "./core/request.js";
import type { Execution } from "./core/result.js";
import { transport as transportOfEnvironment } from "./environment.js";
import { Files } from "./files.js";
import type * as models from "./generated/models.js";
import { Ports } from "./ports.js";
import type { Transport } from "./transport.js";

/** How long code may run when nothing is said, in seconds. */
const CODE_SECS = 60;

/**
 * An isolated machine that can be branched while it runs.
 *
 * Made by `create` or `connect`. With `await using` it is removed at the end.
 */
export class Sandbox implements AsyncDisposable {
  /** What was last heard of it. */
  info: models.Sandbox;
  /** Runs programs in it. */
  readonly commands: Commands;
  /** Reads and writes its files. */
  readonly files: Files;
  /** Reaches what listens in it. */
  readonly ports: Ports;
  /** @internal */
  readonly transport: Transport;

  /** @internal */
  constructor(transport: Transport, info: models.Sandbox) {
    this.transport = transport;
    this.info = info;
    this.commands = new Commands(transport, info.id);
    this.files = new Files(transport, info.id);
    this.ports = new Ports(transport, info.id);
  }

  /**
   * Starts a sandbox from the snapshot with this tag.
   *
   * If there is no such snapshot but an image of that name, the template is built first; that takes
   * a while, once. Without a `client` the daemon is the one that the environment names.
   */
  static async create(
    template = "python",
    options: StartOptions & { client?: Client | undefined } = {},
  ): Promise<Sandbox> {
    const { client, ...start } = options;
    const transport = client?.transport ?? transportOfEnvironment();
    return new Sandbox(transport, await flow.create(transport, template, start));
  }

  /** A sandbox that runs already. */
  static async connect(
    id: string,
    options: { client?: Client | undefined } = {},
  ): Promise<Sandbox> {
    const transport = options.client?.transport ?? transportOfEnvironment();
    return new Sandbox(transport, await transport.send(request.sandbox(id)));
  }

  /** Its name, `sb-` and hexadecimal digits. */
  get id(): string {
    return this.info.id;
  }

  /** What its creator noted. */
  get metadata(): Readonly<Record<string, string>> {
    return this.info.metadata;
  }

  /** `running`, `paused`, `dead` and so on, as it was when last heard of. */
  get state(): string {
    return this.info.state;
  }

  /** Asks how it is; also in `info`. */
  async refresh(): Promise<models.Sandbox> {
    this.info = await this.transport.send(request.sandbox(this.id));
    return this.info;
  }

  /**
   * Runs Python code in the sandbox's interpreter, which keeps its variables.
   *
   * An exception in the code is not thrown here: see `error`, or call `throwForError`. When
   * `timeoutSecs` (60; null for none) are over the code is interrupted and `CodeTimeoutError` is
   * thrown.
   */
  async runCode(
    code: string,
    options: { timeoutSecs?: number | null | undefined } = {},
  ): Promise<Execution> {
    const timeout = options.timeoutSecs === undefined ? CODE_SECS : options.timeoutSecs;
    const execution = await this.transport.send(request.evalCode(this.id, code, timeout));
    return execution.timedOut ? execution.throwForError() : execution;
  }

  /**
   * Takes a snapshot of this very instant and starts `n` children from it.
   *
   * This sandbox goes on; it pauses for about a millisecond in mode `live`, which is the default.
   * Each child has memory, processes and disk of that instant.
   */
  async branch(options: BranchOptions = {}): Promise<Branch> {
    const answer = await this.transport.send(request.branch(this.id, options));
    const children = answer.children.map((child) => Child.of(this.transport, child));
    return new Branch(new Snapshot(this.transport, answer), children);
  }

  /** Takes a snapshot of this very instant. */
  async snapshot(tag?: string, options: { mode?: Mode | undefined } = {}): Promise<Snapshot> {
    return (await this.branch({ tag, mode: options.mode })).snapshot;
  }

  /** Puts the sandbox back to what it was at a snapshot; its id stays. */
  async rollback(snapshot: Snapshot | string): Promise<void> {
    const tag = typeof snapshot === "string" ? snapshot : snapshot.tag;
    this.info = await this.transport.send(request.rollback(this.id, tag));
  }

  /** What it may reach. */
  async network(): Promise<models.NetworkPolicy> {
    return this.transport.send(request.network(this.id));
  }

  /**
   * What it has reached and what it was refused: the newest entries, or those that follow the
   * number `after`; at most 1,000.
   */
  async networkLog(after?: number): Promise<models.NetworkLog> {
    return this.transport.send(request.networkLog(this.id, after));
  }

  /**
   * Makes it a member of a private network: other members reach it by the name in the answer. A
   * member stays one.
   */
  async join(network: string): Promise<models.Membership> {
    this.info = await this.transport.send(route.joinNetwork(this.id, network));
    const joined = this.info.networks.find((membership) => membership.network === network);
    if (joined === undefined) throw new NotUnderstoodError(`it did not join \`${network}\``);
    return joined;
  }

  /** Makes it a member no longer. Its connections to other members are reset. */
  async leave(network: string): Promise<void> {
    this.info = await this.transport.send(route.leaveNetwork(this.id, network));
  }

  /** Replaces what it may reach; ends connections that are no longer allowed. */
  async setNetwork(network: NetworkOptions): Promise<void> {
    this.info = await this.transport.send(request.setNetwork(this.id, network));
  }

  /** Stops its processors until `resume`. */
  async pause(): Promise<void> {
    this.info = await this.transport.send(request.pause(this.id));
  }

  /** Lets it go on after `pause`. */
  async resume(): Promise<void> {
    this.info = await this.transport.send(request.resume(this.id));
  }

  /** A sign of life from its guest agent. */
  ping(): Promise<models.Pong> {
    return this.transport.send(request.ping(this.id));
  }

  /** What it wrote to its console, unfiltered. */
  logs(): Promise<Uint8Array> {
    return this.transport.send(request.logs(this.id));
  }

  /** Removes it, if it is still there. */
  remove(): Promise<void> {
    return flow.removeSandbox(this.transport, this.id);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.remove();
  }
}

/** A complete state of a sandbox at one instant, from which any number can be started. */
export class Snapshot {
  /** What was last heard of it. */
  info: models.Snapshot;
  /** @internal */
  readonly transport: Transport;

  /** @internal */
  constructor(transport: Transport, info: models.Snapshot) {
    this.transport = transport;
    this.info = info;
  }

  /** Its name. */
  get tag(): string {
    return this.info.tag;
  }

  /** How long the source was paused for it. */
  get pauseMs(): number | undefined {
    return this.info.pauseMs;
  }

  /** Starts `n` sandboxes from it: all or none. */
  async fork(n = 1, options: StartOptions = {}): Promise<Sandbox[]> {
    const started = await this.transport.send(request.fork(this.tag, n, options));
    return started.map((info) => new Sandbox(this.transport, info));
  }

  /** Asks how it is, with its place among others. */
  async refresh(): Promise<models.SnapshotInfo> {
    const info = await this.transport.send(request.snapshotInfo(this.tag));
    this.info = info;
    return info;
  }

  /** Waits until sandboxes can be started from it. */
  async wait(options: { timeoutSecs?: number | undefined } = {}): Promise<void> {
    this.info = await flow.untilReady(this.transport, this.tag, options.timeoutSecs);
  }

  /**
   * Makes a snapshot of the same state that depends on no other.
   *
   * With `wait: false` the answer comes at once; the snapshot's `wait` waits for its end.
   */
  async compact(to: string, options: { wait?: boolean | undefined } = {}): Promise<Snapshot> {
    const call = request.compact(this.tag, to, options.wait ?? true);
    return new Snapshot(this.transport, await this.transport.send(call));
  }

  /** Removes it. */
  remove(options: RemoveOptions = {}): Promise<void> {
    return this.transport.send(request.removeSnapshot(this.tag, options));
  }
}

/** One child of a branch: exactly one of `sandbox` and `error`. */
export class Child {
  private constructor(
    /** It runs. */
    readonly sandbox: Sandbox | undefined,
    /** It could not be started. */
    readonly error: ForkdError | undefined,
  ) {}

  /** @internal The child that an answer tells of. */
  static of(transport: Transport, child: models.Child): Child {
    if (child.error !== undefined) return new Child(undefined, errorOfBody(child.error));
    if (child.sandbox !== undefined) {
      return new Child(new Sandbox(transport, child.sandbox), undefined);
    }
    return new Child(undefined, new ForkdError("the daemon told of a child nothing at all"));
  }

  /** The sandbox, or throws the error. */
  unwrap(): Sandbox {
    if (this.sandbox !== undefined) return this.sandbox;
    throw this.error ?? new ForkdError("there is no child");
  }
}

/**
 * What a branch gave. With `await using` its children and its snapshot are removed at the end.
 */
export class Branch implements AsyncDisposable {
  /** @internal */
  constructor(
    /** The state of the source at the branch point. */
    readonly snapshot: Snapshot,
    /** One for each that was asked for. */
    readonly children: readonly Child[],
  ) {}

  /** The children that run. */
  get sandboxes(): Sandbox[] {
    return this.children.flatMap((child) => child.sandbox ?? []);
  }

  /** All children, or throws the error of the first that could not be started. */
  unwrap(): Sandbox[] {
    return this.children.map((child) => child.unwrap());
  }

  /** Removes the children, the snapshot and all that was started or branched from them. */
  remove(): Promise<void> {
    return flow.removeAllOf(this.snapshot.transport, this.snapshot.tag);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.remove();
  }
}
