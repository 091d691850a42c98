/** One daemon, and everything about it that belongs to no single sandbox. */

import "./core/dispose.js";
import type { Content } from "./core/call.js";
import { NotUnderstoodError } from "./core/failure.js";
import * as flow from "./core/flow.js";
import * as route from "./core/networks.js";
import * as request from "./core/request.js";
import type {
  BuildOptions,
  EventFilter,
  ImportOptions,
  RemoveOptions,
  StartOptions,
} from "./core/request.js";
import type { Event } from "./core/result.js";
import { BuildSource, EventsSource } from "./core/source.js";
import { parse, shown } from "./core/target.js";
import { credentials, RETRIES, target } from "./environment.js";
import type * as models from "./generated/models.js";
import { Sandbox, Snapshot } from "./sandbox.js";
import { ByteStream, Stream } from "./stream.js";
import { Transport } from "./transport.js";
import type { Fetch } from "./wire.js";

/** The sandboxes of a daemon. */
export class Sandboxes {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** All of them, or those that have this metadata. */
  async list(
    options: { metadata?: Readonly<Record<string, string>> | undefined } = {},
  ): Promise<Sandbox[]> {
    const found = await this.#transport.send(request.sandboxes(options.metadata));
    return found.map((info) => new Sandbox(this.#transport, info));
  }

  /** Starts one; see `Sandbox.create`. */
  async create(template = "python", options: StartOptions = {}): Promise<Sandbox> {
    return new Sandbox(this.#transport, await flow.create(this.#transport, template, options));
  }

  /** One that runs already. */
  async connect(id: string): Promise<Sandbox> {
    return new Sandbox(this.#transport, await this.#transport.send(request.sandbox(id)));
  }

  /** Removes one. */
  remove(id: string): Promise<void> {
    return this.#transport.send(request.removeSandbox(id));
  }
}

/** The snapshots of a daemon, templates among them. */
export class Snapshots {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** All of them, whatever their status. */
  async list(): Promise<Snapshot[]> {
    const found = await this.#transport.send(request.snapshots());
    return found.map((info) => new Snapshot(this.#transport, info));
  }

  /** One of them. */
  async get(tag: string): Promise<Snapshot> {
    return new Snapshot(this.#transport, await this.info(tag));
  }

  /** One of them and its place among others. */
  info(tag: string): Promise<models.SnapshotInfo> {
    return this.#transport.send(request.snapshotInfo(tag));
  }

  /**
   * Makes a template: boots an image, runs `warm` in it and freezes it.
   *
   * `onStep` is called with each step when it begins.
   */
  async build(
    tag: string,
    options: BuildOptions & { onStep?: ((step: string) => unknown) | undefined },
  ): Promise<Snapshot> {
    const call = request.build(tag, options);
    if (options.onStep === undefined) {
      return new Snapshot(this.#transport, await this.#transport.send(call));
    }
    let snapshot: models.Snapshot | undefined;
    for await (const event of new Stream(this.#transport, new BuildSource(call))) {
      if (event.step !== undefined) await options.onStep(event.step);
      snapshot = event.snapshot ?? snapshot;
    }
    if (snapshot === undefined) {
      throw new NotUnderstoodError(`the daemon went away while it built \`${tag}\``);
    }
    return new Snapshot(this.#transport, snapshot);
  }

  /** Makes a snapshot of the same state that depends on no other; see `Snapshot.compact`. */
  async compact(
    tag: string,
    options: { to: string; wait?: boolean | undefined },
  ): Promise<Snapshot> {
    const call = request.compact(tag, options.to, options.wait ?? true);
    return new Snapshot(this.#transport, await this.#transport.send(call));
  }

  /**
   * The snapshot as one file, piece by piece, for another daemon.
   *
   * The file has the memory and disk of the sandbox, with every password and key that programs had
   * read there.
   */
  exportArtifact(tag: string): Promise<ByteStream> {
    return ByteStream.open(this.#transport, request.exportArtifact(tag));
  }

  /** Makes a snapshot of such a file. The daemon must trust the key that signed it: see `Keys`. */
  async importArtifact(data: Content, options: ImportOptions = {}): Promise<Snapshot> {
    const call = request.importArtifact(data, options);
    return new Snapshot(this.#transport, await this.#transport.send(call));
  }

  /**
   * Puts the snapshot into a registry, such as `registry.example/team/warm:v1`. For admins.
   *
   * The registry gets the memory and disk of the sandbox, with every password and key that programs
   * had read there. What it has is not sent.
   */
  push(tag: string, reference: string): Promise<models.PushedSnapshot> {
    return this.#transport.send(request.push(tag, reference));
  }

  /** Makes a snapshot of what a daemon has pushed to a registry, if it trusts the key. For admins. */
  async pull(reference: string, options: ImportOptions = {}): Promise<Snapshot> {
    const call = request.pull(reference, options);
    return new Snapshot(this.#transport, await this.#transport.send(call));
  }

  /**
   * What a registry has under a reference, who signed it, and whether it starts here. No memory is
   * fetched. For admins.
   */
  hubInfo(reference: string): Promise<models.HubSnapshot> {
    return this.#transport.send(request.hubInfo(reference));
  }

  /**
   * The snapshots in a registry, in repositories with `name` in their names. Some registries list
   * nothing: then it fails with `BadRequestError`. For admins.
   */
  hubSearch(registry: string, name = ""): Promise<models.HubListing> {
    return this.#transport.send(request.hubSearch(registry, name));
  }

  /** Removes one. */
  remove(tag: string, options: RemoveOptions = {}): Promise<void> {
    return this.#transport.send(request.removeSnapshot(tag, options));
  }
}

/** What takes longer than a moment. */
export class Operations {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Those that run, and the last ones that ended. */
  list(options: { state?: models.KnownOperationState | undefined } = {}): Promise<readonly models.Operation[]> {
    return this.#transport.send(request.operations(options.state));
  }

  /** One of them. */
  get(id: string): Promise<models.Operation> {
    return this.#transport.send(request.operation(id));
  }

  /** Waits until it has ended, well or not: see its `state`. */
  wait(id: string, options: { timeoutSecs?: number | undefined } = {}): Promise<models.Operation> {
    return flow.untilEnded(this.#transport, id, options.timeoutSecs);
  }

  /** Asks for its end. */
  cancel(id: string): Promise<void> {
    return this.#transport.send(request.cancelOperation(id));
  }
}

/** The key that the daemon signs artifacts with, and those that it trusts. */
export class Keys {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** All of them. */
  get(): Promise<models.Keys> {
    return this.#transport.send(request.keys());
  }

  /** Trusts a key from now on, in place of one of the same name. */
  trust(name: string, key: string): Promise<void> {
    return this.#transport.send(request.trustKey(name, key));
  }

  /** Trusts it no more. What was imported stays. */
  remove(name: string): Promise<void> {
    return this.#transport.send(request.removeKey(name));
  }
}

/** Keys that header rules put into requests. Sandboxes use them and never have them. */
export class Secrets {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** The names of yours. */
  list(): Promise<readonly models.Secret[]> {
    return this.#transport.send(request.secrets());
  }

  /** Sets one, or replaces its value: one line of ASCII. */
  set(name: string, value: string): Promise<void> {
    return this.#transport.send(request.setSecret(name, value));
  }

  /** Removes one. Requests that need it fail from then on. */
  remove(name: string): Promise<void> {
    return this.#transport.send(request.removeSecret(name));
  }
}

/** Private networks, whose members reach each other by name. See `Sandbox.join`. */
export class Networks {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Yours, with their members. */
  list(): Promise<readonly models.Network[]> {
    return this.#transport.send(route.networks());
  }

  /** Creates one without members. */
  create(name: string): Promise<models.Network> {
    return this.#transport.send(route.createNetwork(name));
  }

  /** One of them, with its members. */
  get(name: string): Promise<models.Network> {
    return this.#transport.send(route.privateNetwork(name));
  }

  /** Removes one. Connections between its members are reset. */
  remove(name: string): Promise<void> {
    return this.#transport.send(route.removeNetwork(name));
  }
}

/** How a client connects. */
export interface ClientOptions {
  /** By default `FORKD_TOKEN`. */
  token?: string | undefined;
  /** A file with the issuer of the daemon's certificate; by default `FORKD_CA_CERT`. */
  caCert?: string | undefined;
  /** How often a request is repeated that is refused because too many wait. */
  maxRetries?: number | undefined;
  /** Sends all requests instead of what this package would use. */
  fetch?: Fetch | undefined;
}

/**
 * A connection to a daemon.
 *
 * `url` is `http://host:port`, `https://...` or `unix:/path/of/the.sock`; by default it is the
 * daemon that the command line would use: `FORKD_URL`, else the socket of the user's own daemon.
 */
export class Client implements AsyncDisposable {
  /** The sandboxes. */
  readonly sandboxes: Sandboxes;
  /** The snapshots. */
  readonly snapshots: Snapshots;
  /** What takes longer than a moment. */
  readonly operations: Operations;
  /** Keys for header rules. */
  readonly secrets: Secrets;
  /** Whose artifacts are imported. */
  readonly keys: Keys;
  /** Private networks. */
  readonly networks: Networks;
  /** @internal */
  readonly transport: Transport;

  constructor(url?: string, options: ClientOptions = {}) {
    const environment = credentials();
    this.transport = new Transport(url === undefined ? target() : parse(url), {
      token: options.token ?? environment.token,
      caCert: options.caCert ?? environment.caCert,
      maxRetries: options.maxRetries ?? RETRIES,
      fetch: options.fetch,
    });
    this.sandboxes = new Sandboxes(this.transport);
    this.snapshots = new Snapshots(this.transport);
    this.operations = new Operations(this.transport);
    this.secrets = new Secrets(this.transport);
    this.keys = new Keys(this.transport);
    this.networks = new Networks(this.transport);
  }

  /** Where it connects to. */
  get address(): string {
    return shown(this.transport.target);
  }

  /** A sign of life. */
  health(): Promise<models.Health> {
    return this.transport.send(request.healthz());
  }

  /** Which daemon answers. */
  version(): Promise<models.Version> {
    return this.transport.send(request.version());
  }

  /** Its metrics, as Prometheus reads them. */
  metrics(): Promise<string> {
    return this.transport.send(request.metrics());
  }

  /** What templates can be built from. */
  images(): Promise<readonly models.Image[]> {
    return this.transport.send(request.images());
  }

  /** What happens, from the end of this call on, or after the event with the id `after`. */
  events(filter: EventFilter = {}): Promise<Stream<Event>> {
    return new Stream(this.transport, new EventsSource(filter)).open();
  }

  /** Closes the connections. Sandboxes stay. */
  async close(): Promise<void> {
    this.transport.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
