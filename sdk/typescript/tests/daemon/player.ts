/** Plays the scenarios of `sdk/conformance`. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";

import {
  BuildFailedError,
  CodeTimeoutError,
  CommandTimeoutError,
  ForkdError,
  Template,
  command,
  type Client,
  type Command,
  type CommandResult,
  type Mode,
  type Process,
  type Sandbox,
  type Snapshot,
  type Value,
} from "forkd-sdk";
import { ApiError, SnapshotNotFoundError } from "forkd-sdk/errors";

import { ROOT } from "../paths.js";

type Fields = Record<string, unknown>;

/** One step of a scenario. */
export interface Step extends Fields {
  readonly do: string;
}

/** A scenario. */
export interface Scenario {
  readonly name: string;
  readonly needs?: readonly string[];
  readonly steps: readonly Step[];
}

/** All of them. */
export function scenarios(): Scenario[] {
  return JSON.parse(readFileSync(`${ROOT}/sdk/conformance/scenarios.json`, "utf8"));
}

/** What of the OpenAPI document is looked at. */
export interface Interface {
  readonly paths: Record<string, Fields>;
  readonly components: { readonly schemas: Record<string, { properties?: Fields }> };
}

/** What the scenario needs and the daemon's interface does not have. */
export function lacking(scenario: Scenario, document: Interface): string[] {
  return (scenario.needs ?? []).filter((need) => {
    const [method = "", path] = need.split(" ");
    if (path !== undefined) return !(method.toLowerCase() in (document.paths[path] ?? {}));
    const [schema = "", field = ""] = need.split(".");
    return !(field in (document.components.schemas[schema]?.properties ?? {}));
  });
}

interface Box {
  readonly object: Sandbox;
}

type Act = (given: never) => Promise<Fields | void>;

/** Plays one scenario. */
export class Player {
  readonly #client: Client;
  readonly #names = new Map<string, Fields>();
  readonly #made: { remove(): Promise<void> }[] = [];

  constructor(client: Client) {
    this.#client = client;
  }

  /** All steps; what they made is removed, whatever happens. */
  async play(scenario: Scenario): Promise<void> {
    try {
      for (const [index, step] of scenario.steps.entries()) {
        await this.#step(step, `step ${index + 1} (${step.do})`);
      }
    } finally {
      for (const each of this.#made.reverse()) await each.remove();
    }
  }

  async #step(step: Step, where: string): Promise<void> {
    const { do: verb, as, expect, error, ...given } = step;
    const act = (this.#verbs as Record<string, Act | undefined>)[verb];
    assert(act !== undefined, `${where}: no such verb`);
    let outcome: Fields;
    try {
      outcome = (await act(this.#value(given) as never)) ?? {};
    } catch (thrown) {
      if (!(thrown instanceof ForkdError)) throw thrown;
      assert.equal(codeOf(thrown), error, `${where}: ${String(thrown)}`);
      return;
    }
    assert.equal(error, undefined, `${where} must fail with ${String(error)}`);
    for (const [field, wanted] of Object.entries((expect ?? {}) as Fields)) {
      assert(field in outcome, `${where} gives no ${field}`);
      const found = outcome[field];
      const shown = `${where}: ${field} is ${JSON.stringify(found)}`;
      assert(matches(found, this.#value(wanted)), shown);
    }
    if (typeof as === "string") this.#names.set(as, outcome);
  }

  /** With what names stand for. */
  #value(value: unknown): unknown {
    if (Array.isArray(value)) return value.map((each) => this.#value(each));
    if (isPlain(value)) {
      const entries = Object.entries(value).map(([key, each]) => [key, this.#value(each)]);
      return Object.fromEntries(entries);
    }
    if (typeof value !== "string") return value;
    if (!/^\$[a-z]+(\.\w+)*$/.test(value)) {
      // A dollar sign that is meant is written twice at the beginning.
      return value.startsWith("$$") ? value.slice(1) : value;
    }
    const [name = "", ...path] = value.slice(1).split(".");
    let found: unknown = this.#names.get(name);
    for (const part of path) found = (found as Fields)[part];
    return found;
  }

  #box(sandbox: Sandbox): Fields {
    const { id, state, metadata } = sandbox;
    return { object: sandbox, id, state, metadata };
  }

  #taken(snapshot: Snapshot): Fields {
    return { snapshot, tag: snapshot.tag, status: snapshot.info.status };
  }

  /** Removes steps with what builds on them; another build of the same may have shared them. */
  async #removeAllOn(tags: Iterable<string>): Promise<void> {
    for (const tag of tags) {
      try {
        await this.#client.snapshots.remove(tag, { cascade: true });
      } catch (error) {
        if (!(error instanceof SnapshotNotFoundError)) throw error;
      }
    }
  }

  readonly #verbs = {
    create: async ({ template, metadata, ttl }: { template: string; metadata?: Words; ttl?: number }) => {
      const options = { metadata, ttlSecs: ttl };
      const sandbox = await this.#client.sandboxes.create(template, options);
      this.#made.push(sandbox);
      return this.#box(sandbox);
    },
    connect: async ({ id }: { id: string }) => this.#box(await this.#client.sandboxes.connect(id)),
    refresh: async ({ sandbox }: { sandbox: Box }) => {
      await sandbox.object.refresh();
      return this.#box(sandbox.object);
    },
    pause: async ({ sandbox }: { sandbox: Box }) => {
      await sandbox.object.pause();
      return this.#box(sandbox.object);
    },
    resume: async ({ sandbox }: { sandbox: Box }) => {
      await sandbox.object.resume();
      return this.#box(sandbox.object);
    },
    remove: ({ sandbox }: { sandbox: Box }) => sandbox.object.remove(),
    rollback: async ({ sandbox, snapshot }: { sandbox: Box; snapshot: Snapshot }) => {
      await sandbox.object.rollback(snapshot);
      return this.#box(sandbox.object);
    },
    find: async ({ metadata }: { metadata: Words }) => {
      const found = await this.#client.sandboxes.list({ metadata });
      return { ids: found.map((sandbox) => sandbox.id) };
    },
    run_code: async ({ sandbox, code, timeout }: { sandbox: Box; code: string; timeout?: number }) => {
      const execution = await sandbox.object.runCode(code, { timeoutSecs: timeout });
      const { result, stdout, stderr, error } = execution;
      const forms = (value: Value) =>
        Object.fromEntries(value.parts.map((part) => [part.mime, part.data]));
      const [parts, displays] = [forms(execution), execution.displays.map(forms)];
      return { result, stdout, stderr, error, parts, displays };
    },
    run: async ({ sandbox, command, stream, timeout, ...more }: Run) => {
      const seen: string[] = [];
      const result = await sandbox.object.commands.run(command, {
        ...more,
        timeoutSecs: timeout,
        onStdout: stream ? (text) => seen.push(text) : undefined,
      });
      return { ...ended(result), seen: seen.join("") };
    },
    start: async ({ sandbox, command, stdin }: { sandbox: Box; command: Command; stdin?: boolean }) => {
      const process = await sandbox.object.commands.start(command, { stdin });
      return { object: process, id: process.id, args: process.info.args };
    },
    wait: async ({ process }: { process: Running }) => ended(await process.object.wait()),
    send_stdin: ({ process, text, eof }: { process: Running; text: string; eof?: boolean }) =>
      process.object.sendStdin(text, { eof: eof ?? false }),
    signal: ({ process, signal }: { process: Running; signal: string }) =>
      process.object.sendSignal(signal),
    write_file: ({ sandbox, path, text, base64 }: InFile & { text?: string; base64?: string }) =>
      sandbox.object.files.write(path, text ?? Buffer.from(base64 ?? "", "base64")),
    read_file: async ({ sandbox, path }: InFile) => {
      const data = Buffer.from(await sandbox.object.files.read(path, { format: "bytes" }));
      return { text: data.toString(), base64: data.toString("base64") };
    },
    exists: async ({ sandbox, path }: InFile) => ({
      exists: await sandbox.object.files.exists(path),
    }),
    stat_file: async ({ sandbox, path }: InFile) => {
      const { kind, sizeBytes } = await sandbox.object.files.stat(path);
      return { kind, size_bytes: sizeBytes };
    },
    list_files: async ({ sandbox, path }: InFile) => {
      const entries = await sandbox.object.files.list(path);
      return { names: entries.map((entry) => entry.name).sort() };
    },
    make_dir: ({ sandbox, path }: InFile) => sandbox.object.files.mkdir(path),
    remove_file: ({ sandbox, path, recursive }: InFile & { recursive?: boolean }) =>
      sandbox.object.files.remove(path, { recursive: recursive ?? false }),
    branch: async ({ sandbox, n, mode }: { sandbox: Box; n?: number; mode?: Mode }) => {
      const branch = await sandbox.object.branch({ n, mode });
      this.#made.push(branch);
      const children = branch.unwrap().map((child) => this.#box(child));
      return { ...this.#taken(branch.snapshot), children };
    },
    fork: async ({ snapshot, n }: { snapshot: Snapshot; n?: number }) => ({
      children: (await snapshot.fork(n)).map((child) => this.#box(child)),
    }),
    snapshot_info: async ({ tag }: { tag: string }) => {
      const info = await this.#client.snapshots.info(tag);
      return { tag: info.tag, status: info.status, chain_depth: info.chainDepth };
    },
    compact: async ({ snapshot, to }: { snapshot: Snapshot; to: string }) =>
      this.#taken(await snapshot.compact(to)),
    remove_snapshot: ({ snapshot, cascade }: { snapshot: Snapshot; cascade?: boolean }) =>
      snapshot.remove({ cascade }),
    build: async ({ template, tag, steps, no_cache: noCache }: Build) => {
      const recipe = steps.reduce(withStep, Template.fromSnapshot(template));
      const tags = new Set<string>();
      this.#made.push({ remove: () => this.#removeAllOn(tags) });
      const built = await recipe.build(tag, {
        context: `${ROOT}/sdk/conformance`,
        noCache,
        client: this.#client,
        onStep: ({ snapshotTag }) => snapshotTag !== undefined && tags.add(snapshotTag),
      });
      return { tag: built.tag, cached: built.steps.map((step) => step.status === "cached") };
    },
    images: async () => ({ names: (await this.#client.images()).map((image) => image.name) }),
    version: async () => ({ api: (await this.#client.version()).api }),
  };
}

type Words = Record<string, string>;

interface InFile {
  readonly sandbox: Box;
  readonly path: string;
}

interface Running {
  readonly object: Process;
}

interface Run {
  readonly sandbox: Box;
  readonly command: Command;
  readonly env?: Words;
  readonly cwd?: string;
  readonly stdin?: string;
  readonly timeout?: number;
  readonly stream?: boolean;
}

/** A step of a build, as a scenario has it. */
interface Made {
  readonly run?: Command;
  readonly copy?: string;
  readonly to?: string;
  readonly mode?: string;
  readonly env?: Words;
  readonly workdir?: string;
  readonly user?: string;
  readonly start?: Command;
  readonly ready?: Command;
}

interface Build {
  readonly template: string;
  readonly tag: string;
  readonly steps: readonly Made[];
  readonly no_cache?: boolean;
}

/** The template with a step more. */
function withStep(template: Template, step: Made): Template {
  if (step.run !== undefined) return template.run(step.run);
  if (step.copy !== undefined) {
    return template.copy(step.copy, step.to ?? "", { mode: parseInt(step.mode ?? "", 8) });
  }
  if (step.env !== undefined) return template.env(step.env);
  if (step.workdir !== undefined) return template.workdir(step.workdir);
  if (step.user !== undefined) return template.user(step.user);
  assert(step.start !== undefined && step.ready !== undefined, "no such step");
  return template.start(step.start, { ready: command(step.ready) });
}

function isPlain(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && value.constructor === Object;
}

function ended({ stdout, stderr, exitCode }: CommandResult): Fields {
  return { stdout, stderr, exit_code: exitCode };
}

/** The word by which a scenario knows an error. */
function codeOf(error: ForkdError): string | undefined {
  if (error instanceof CommandTimeoutError) return "command_timeout";
  if (error instanceof CodeTimeoutError) return "code_timeout";
  if (error instanceof BuildFailedError) return "build_failed";
  return error instanceof ApiError ? error.code : undefined;
}

/** Whether a value is what a scenario wants. */
export function matches(found: unknown, wanted: unknown): boolean {
  const entries = isPlain(wanted) ? Object.entries(wanted) : [];
  const [matcher, argument] = entries.length === 1 ? (entries[0] ?? []) : [];
  switch (matcher) {
    case "contains":
      return ((found ?? "") as string | unknown[]).includes(argument as string);
    case "matches":
      return new RegExp(argument as string).test(found as string);
    case "length":
      return (found as string | unknown[]).length === argument;
    case "at_least":
      return (found as number) >= (argument as number);
    case "is":
      return argument === "null" ? found == null : typeof found === "string" && found !== "";
    default:
      return isDeepStrictEqual(found, wanted);
  }
}
