/**
 * Endless answers: what is asked for, and what each event of them means. No I/O.
 *
 * A source knows how far it has been read, so that a stream that lost the connection can ask for
 * the rest.
 */

import * as models from "../generated/models.js";
import { bytesOf, ofBase64 } from "./bytes.js";
import { errorOfBody, nothing, type Call } from "./call.js";
import { members, type Reader } from "./decode.js";
import { NotUnderstoodError, SandboxGoneError } from "./failure.js";
import * as request from "./request.js";
import {
  CommandResult,
  OutputChunk,
  type Collector,
  type Event,
  type FileChange,
} from "./result.js";
import type { SentEvent } from "./sse.js";

/** How often a connection is made anew without anything coming through it. */
export const RECONNECTS_MAX = 5;

/** A stream says something at least every 15 seconds. */
export const SILENCE_SECS_MAX = 60;

/** How long to wait before a connection is made anew. */
export function backoffSecs(attempt: number): number {
  return Math.min(0.1 * 2 ** attempt, 2);
}

/** An endless answer. */
export interface Source<T> {
  /** How it is cut into pieces. */
  readonly form: "events" | "lines";
  /** Whether asking again loses nothing. */
  readonly resumable: boolean;
  /** Whether its last event has come. */
  readonly finished: boolean;
  /** What to ask for, from where it was left. */
  request(): Call<void>;
  /** What an event means; undefined if it is not for the reader. */
  read(event: SentEvent): T | undefined;
}

/** The output of a process. */
export class OutputSource implements Source<OutputChunk> {
  readonly form = "events";
  readonly resumable = true;
  finished = false;
  readonly #sandboxId: string;
  readonly #processId: string;
  #offset: number | undefined;
  #exit: Record<string, unknown> | undefined;
  #lostBytes = 0;

  constructor(sandboxId: string, processId: string, offset?: number) {
    this.#sandboxId = sandboxId;
    this.#processId = processId;
    this.#offset = offset;
  }

  /** From the byte after the last one that came. */
  request(): Call<void> {
    return request.processOutput(this.#sandboxId, this.#processId, this.#offset);
  }

  /** A chunk of output; how it ended is noted. */
  read(event: SentEvent): OutputChunk | undefined {
    const content = dataOf(event);
    switch (event.name) {
      case "stdout":
      case "stderr": {
        const bytes = outputOf(content);
        this.#reached(event.id);
        return new OutputChunk(event.name, bytes, this.#offset ?? 0);
      }
      case "lost":
        this.#lostBytes += typeof content.bytes === "number" ? content.bytes : 0;
        this.#reached(event.id);
        return undefined;
      case "exit":
        this.#exit = content;
        this.finished = true;
        return undefined;
      case "gone":
        throw gone(this.#sandboxId, content);
      default:
        return undefined;
    }
  }

  #reached(id: string): void {
    if (/^\d+$/.test(id)) this.#offset = Number(id);
  }

  /** How it ended, with what was collected of its output. */
  result(args: readonly string[], collected: Collector): CommandResult {
    if (this.#exit === undefined) {
      throw new NotUnderstoodError("the output ended without saying how the command ended");
    }
    const { exit_code: code, signal, timed_out: timedOut } = this.#exit;
    const ended = typeof signal === "number" ? signal : undefined;
    return new CommandResult({
      args,
      exitCode: typeof code === "number" ? code : ended === undefined ? -1 : 128 + ended,
      stdoutBytes: collected.stdout,
      stderrBytes: collected.stderr,
      signal: ended,
      timedOut: timedOut === true,
      lostBytes: this.#lostBytes,
    });
  }
}

const CHANGES: readonly string[] = ["created", "modified", "removed", "renamed"];

/**
 * What happens to the files below a path.
 *
 * It is not resumable: what happens between two connections is seen by nobody.
 */
export class WatchSource implements Source<FileChange> {
  readonly form = "events";
  readonly resumable = false;
  readonly finished = false;

  constructor(
    readonly sandboxId: string,
    readonly path: string,
    readonly recursive: boolean,
  ) {}

  request(): Call<void> {
    return request.watchFiles(this.sandboxId, this.path, this.recursive);
  }

  /** A change. */
  read(event: SentEvent): FileChange | undefined {
    const content = dataOf(event);
    if (CHANGES.includes(event.name)) {
      return { kind: event.name as FileChange["kind"], path: String(content.path ?? "") };
    }
    if (event.name === "gone") throw gone(this.sandboxId, content);
    return undefined;
  }
}

type About = models.Sandbox | models.Snapshot | models.Operation;

const ABOUT: Readonly<Record<string, Reader<About>>> = {
  sandbox: models.readSandbox,
  snapshot: models.readSnapshot,
  operation: models.readOperation,
};

/** What happens in the daemon. */
export class EventsSource implements Source<Event> {
  readonly form = "events";
  readonly resumable = true;
  readonly finished = false;
  readonly #filter: request.EventFilter;
  #after: string | undefined;

  constructor(filter: request.EventFilter) {
    this.#filter = filter;
    this.#after = filter.after;
  }

  /** Those after the last one that came. */
  request(): Call<void> {
    return request.events({ ...this.#filter, after: this.#after });
  }

  /** An event. */
  read(event: SentEvent): Event | undefined {
    // A sign of life has an id too: what was not asked for is behind it.
    this.#after = event.id || this.#after;
    if (event.data === "") return undefined;
    const json = dataOf(event);
    const told = { id: event.id, type: event.name, json };
    if (event.name === "lost") {
      const lost = typeof json.events === "number" ? json.events : undefined;
      return { ...told, data: undefined, lost };
    }
    const reader = ABOUT[event.name.split(".", 1)[0] ?? ""];
    return { ...told, data: reader?.(json, event.name), lost: undefined };
  }
}

/** The steps of a template build, and the template. */
export class BuildSource implements Source<models.BuildEvent> {
  readonly form = "lines";
  readonly resumable = false;
  finished = false;

  constructor(readonly build: Call<models.Snapshot>) {}

  /** The build, told step by step. */
  request(): Call<void> {
    return {
      method: this.build.method,
      path: this.build.path,
      parse: nothing,
      body: this.build.body,
      headers: { accept: "application/x-ndjson" },
      timeoutSecs: null,
    };
  }

  /** A step, or at last the template; a build that failed is thrown. */
  read(line: SentEvent): models.BuildEvent | undefined {
    if (line.data.trim() === "") return undefined;
    const event = models.readBuildEvent(dataOf(line), "BuildEvent");
    if (event.error !== undefined) throw errorOfBody(event.error);
    this.finished = event.snapshot !== undefined;
    return event;
  }
}

function gone(sandboxId: string, content: Record<string, unknown>): SandboxGoneError {
  const reason = String(content.reason ?? "no reason given");
  return new SandboxGoneError(`sandbox \`${sandboxId}\` ended: ${reason}`);
}

function dataOf(event: SentEvent): Record<string, unknown> {
  try {
    return members(JSON.parse(event.data || "{}"), "an event's data");
  } catch {
    const shown = JSON.stringify(event.data.slice(0, 80));
    throw new NotUnderstoodError(`an event's data is no object of JSON: ${shown}`);
  }
}

function outputOf(content: Record<string, unknown>): Uint8Array {
  const bytes =
    typeof content.base64 === "string"
      ? ofBase64(content.base64)
      : typeof content.text === "string"
        ? bytesOf(content.text)
        : undefined;
  if (bytes === undefined) throw new NotUnderstoodError("a chunk of output is not understood");
  return bytes;
}
