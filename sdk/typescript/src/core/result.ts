/** What commands and code gave, and what streams bring, as users see it. */

import { constants } from "node:os";

import type * as models from "../generated/models.js";
import { bytesOf, joined, ofBase64, textOf } from "./bytes.js";
import { ForkdError, NotUnderstoodError } from "./failure.js";

/** A command ended with another exit code than 0. */
export class CommandFailedError extends ForkdError {
  /** What it wrote and how it ended. */
  readonly result: CommandResult;

  constructor(message: string, result: CommandResult) {
    super(message);
    this.result = result;
  }
}

/** A command's time was over, so it was killed. */
export class CommandTimeoutError extends CommandFailedError {}

/** Python code raised an exception, or the interpreter ended. */
export class CodeError extends ForkdError {
  /** What it printed until then, and the traceback. */
  readonly execution: Execution;

  constructor(message: string, execution: Execution) {
    super(message);
    this.execution = execution;
  }
}

/** Python code's time was over, so it was interrupted. */
export class CodeTimeoutError extends CodeError {}

/** What a command wrote and how it ended. */
export class CommandResult {
  /** Program and arguments. */
  readonly args: readonly string[];
  /** Exit code, or 128 + signal. */
  readonly exitCode: number;
  /** Standard output. */
  readonly stdoutBytes: Uint8Array;
  /** Standard error. */
  readonly stderrBytes: Uint8Array;
  /** The signal that ended it. */
  readonly signal: number | undefined;
  /** It was killed because its time was over. */
  readonly timedOut: boolean;
  /** Bytes of output that were dropped before anybody read them. */
  readonly lostBytes: number;

  constructor(found: {
    args: readonly string[];
    exitCode: number;
    stdoutBytes: Uint8Array;
    stderrBytes: Uint8Array;
    signal?: number | undefined;
    timedOut?: boolean;
    lostBytes?: number;
  }) {
    this.args = found.args;
    this.exitCode = found.exitCode;
    this.stdoutBytes = found.stdoutBytes;
    this.stderrBytes = found.stderrBytes;
    this.signal = found.signal;
    this.timedOut = found.timedOut ?? false;
    this.lostBytes = found.lostBytes ?? 0;
  }

  /** Standard output as text. */
  get stdout(): string {
    return textOf(this.stdoutBytes);
  }

  /** Standard error as text. */
  get stderr(): string {
    return textOf(this.stderrBytes);
  }

  /** Whether the exit code is 0. */
  get ok(): boolean {
    return this.exitCode === 0 && !this.timedOut;
  }

  /** Itself, or throws `CommandFailedError` if the exit code is not 0. */
  throwForExit(): this {
    const program = this.args[0] ?? "the command";
    if (this.timedOut) {
      throw new CommandTimeoutError(`\`${program}\` was killed: its time was over`, this);
    }
    if (this.exitCode === 0) return this;
    const how =
      this.signal === undefined
        ? `ended with exit code ${this.exitCode}`
        : `was ended by ${signalName(this.signal)}`;
    const last = lastLine(this.stderr).slice(0, 200);
    throw new CommandFailedError(`\`${program}\` ${how}` + (last && `: ${last}`), this);
  }
}

function signalName(number: number): string {
  const found = Object.entries(constants.signals).find(([, value]) => value === number);
  return found?.[0] ?? `signal ${number}`;
}

function lastLine(text: string): string {
  return text.trim().split("\n").at(-1) ?? "";
}

/** A piece of what a command wrote. */
export class OutputChunk {
  constructor(
    readonly stream: "stdout" | "stderr",
    /** The bytes; a character is not cut in two. */
    readonly data: Uint8Array,
    /** Offset in the whole output of the byte after these; reading can go on from here. */
    readonly offset: number,
  ) {}

  /** The bytes as text. */
  get text(): string {
    return textOf(this.data);
  }
}

/** A value in one form. */
export class Part {
  constructor(
    /** Its media type, such as `image/png`. */
    readonly mime: string,
    /** As it came: text, or base64 for a binary type. */
    readonly data: string,
  ) {}

  /** Whether `data` is the content itself; by this the daemon tells text from bytes, too. */
  get isText(): boolean {
    return this.mime.startsWith("text/") || /(json|xml|javascript)$/.test(this.mime);
  }

  /** The bytes. */
  get content(): Uint8Array {
    // A program in the guest may call any text an image.
    return (this.isText ? undefined : ofBase64(this.data)) ?? bytesOf(this.data);
  }
}

/** A value of code. */
export abstract class Value {
  constructor(
    /** The value in each form that it has. */
    readonly parts: readonly Part[],
  ) {}

  /** The value as text. */
  get text(): string | undefined {
    return this.part("text/plain")?.data;
  }

  /** The value as HTML. */
  get html(): string | undefined {
    return this.part("text/html")?.data;
  }

  /** The value as Markdown. */
  get markdown(): string | undefined {
    return this.part("text/markdown")?.data;
  }

  /** The value as LaTeX. */
  get latex(): string | undefined {
    return this.part("text/latex")?.data;
  }

  /** The value as SVG. */
  get svg(): string | undefined {
    return this.part("image/svg+xml")?.data;
  }

  /** The value as a PNG image. */
  get png(): Uint8Array | undefined {
    return this.part("image/png")?.content;
  }

  /** The value as a JPEG image. */
  get jpeg(): Uint8Array | undefined {
    return this.part("image/jpeg")?.content;
  }

  /** The value as what its JSON means; undefined if it has no such form. */
  get json(): unknown {
    return this.#json("application/json");
  }

  /** The value in this form. */
  part(mime: string): Part | undefined {
    return this.parts.find((part) => part.mime === mime);
  }

  /** The data of the charts of a figure, as E2B has them; undefined if it is no figure. */
  get chart(): unknown {
    return this.#json("application/vnd.forkd.chart+json");
  }

  /** The columns of a table, each with its values; undefined if it is no table. */
  get table(): unknown {
    return this.#json("application/vnd.forkd.table+json");
  }

  #json(mime: string): unknown {
    const part = this.part(mime);
    return part === undefined ? undefined : JSON.parse(part.data);
  }
}

/** A value that code showed: by `display`, or as a figure. */
export class Display extends Value {}

/** What Python code gave; `parts` and all others are of its last expression's value. */
export class Execution extends Value {
  /** What it printed. */
  readonly stdoutBytes: Uint8Array;
  /** What it printed to standard error. */
  readonly stderrBytes: Uint8Array;
  /** `repr` of the last expression; undefined when there is none or it is `None`. */
  readonly result: string | undefined;
  /** The traceback, or what happened to the interpreter; undefined if all went well. */
  readonly error: string | undefined;
  /** What it showed before, in the order in which it did. */
  readonly displays: readonly Display[];
  /** How many values it showed for which there was no room. */
  readonly displaysLeftOut: number;
  /** Its time was over. */
  readonly timedOut: boolean;
  /** The interpreter ended: variables are gone. */
  readonly stateLost: boolean;

  constructor(found: {
    stdoutBytes: Uint8Array;
    stderrBytes: Uint8Array;
    result?: string | undefined;
    error?: string | undefined;
    parts?: readonly Part[];
    displays?: readonly Display[];
    displaysLeftOut?: number;
    timedOut?: boolean;
    stateLost?: boolean;
  }) {
    super(found.parts ?? []);
    this.stdoutBytes = found.stdoutBytes;
    this.stderrBytes = found.stderrBytes;
    this.result = found.result;
    this.error = found.error;
    this.displays = found.displays ?? [];
    this.displaysLeftOut = found.displaysLeftOut ?? 0;
    this.timedOut = found.timedOut ?? false;
    this.stateLost = found.stateLost ?? false;
  }

  /** What it printed, as text. */
  get stdout(): string {
    return textOf(this.stdoutBytes);
  }

  /** What it printed to standard error, as text. */
  get stderr(): string {
    return textOf(this.stderrBytes);
  }

  /** Whether no exception was raised. */
  get ok(): boolean {
    return this.error === undefined;
  }

  /** The value as text. */
  override get text(): string | undefined {
    return super.text ?? this.result;
  }

  /** Itself, or throws `CodeError` if there was an exception. */
  throwForError(): this {
    if (this.timedOut) {
      throw new CodeTimeoutError("the code was interrupted: its time was over", this);
    }
    if (this.error !== undefined) {
      throw new CodeError(lastLine(this.error) || "the code failed", this);
    }
    return this;
  }
}

/** Something happened to a file. */
export interface FileChange {
  readonly kind: "created" | "modified" | "removed" | "renamed";
  readonly path: string;
}

/** Something happened to a sandbox, a snapshot or an operation. */
export interface Event {
  /** Where it stands among the events; `events({ after })` goes on from there. */
  readonly id: string;
  /** Such as `sandbox.dead` or `snapshot.ready`. */
  readonly type: models.EventType;
  /** What it happened to, as it is now; undefined in an event of type `lost`. */
  readonly data: models.Sandbox | models.Snapshot | models.Operation | undefined;
  /**
   * In an event of type `lost`: how many are no longer known; undefined if the daemon was started
   * anew.
   */
  readonly lost: number | undefined;
  /** The data as it came. */
  readonly json: Readonly<Record<string, unknown>>;
}

/** The bytes behind a pair of text and optional base64. */
function exact(text: string, encoded: string | undefined): Uint8Array {
  if (encoded === undefined) return bytesOf(text);
  const bytes = ofBase64(encoded);
  if (bytes === undefined) throw new NotUnderstoodError("output is no base64");
  return bytes;
}

/** What `exec` answered. */
export function commandResult(args: readonly string[], answer: models.ExecAnswer): CommandResult {
  return new CommandResult({
    args,
    exitCode: answer.exitCode,
    stdoutBytes: exact(answer.stdout, answer.stdoutBase64),
    stderrBytes: exact(answer.stderr, answer.stderrBase64),
    signal: answer.signal,
    timedOut: answer.timedOut,
  });
}

function partsOf(found: readonly models.EvalPart[]): Part[] {
  return found.map((part) => new Part(part.mime, part.data));
}

/** What `eval` answered. */
export function execution(answer: models.EvalAnswer): Execution {
  return new Execution({
    stdoutBytes: exact(answer.stdout, answer.stdoutBase64),
    stderrBytes: exact(answer.stderr, answer.stderrBase64),
    result: answer.result,
    error: answer.error,
    parts: partsOf(answer.parts),
    displays: answer.displays.map((display) => new Display(partsOf(display.parts))),
    displaysLeftOut: answer.displaysLeftOut,
    timedOut: answer.timedOut,
    stateLost: answer.stateLost,
  });
}

/** Gathers a process's output. */
export class Collector {
  readonly #parts: Record<"stdout" | "stderr", Uint8Array[]> = { stdout: [], stderr: [] };

  /** Takes a chunk. */
  add(chunk: OutputChunk): void {
    this.#parts[chunk.stream].push(chunk.data);
  }

  /** All that was written to standard output. */
  get stdout(): Uint8Array {
    return joined(this.#parts.stdout);
  }

  /** All that was written to standard error. */
  get stderr(): Uint8Array {
    return joined(this.#parts.stderr);
  }
}
