/**
 * The root of all errors, and those that are not of the daemon's catalogue. Those that carry a
 * result are beside it.
 */

/** The root of everything that this package throws. */
export class ForkdError extends Error {
  /** What to do about it; may be empty. */
  readonly hint: string;

  constructor(message: string, options: { hint?: string; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    Object.defineProperty(this, "name", { value: new.target.name, configurable: true });
    this.hint = options.hint ?? "";
  }

  override toString(): string {
    const text = `${this.name}: ${this.message}`;
    return this.hint === "" ? text : `${text} (hint: ${this.hint})`;
  }
}

/** What an `ApiError` is made of, besides its message. */
export interface ApiErrorOptions {
  hint?: string;
  status?: number;
  code?: string | undefined;
  requestId?: string | undefined;
  retryAfterSecs?: number | undefined;
}

/** The daemon refused or failed. Each code of its catalogue has a class below this one. */
export class ApiError extends ForkdError {
  /** The stable word of the class. */
  static readonly code: string = "unknown";
  /** The HTTP status; 0 for a failure that came inside an answer. */
  readonly status: number;
  /** The code as the daemon sent it, also one that this version does not know. */
  readonly code: string;
  /** Under this name the daemon's log knows the request. */
  readonly requestId: string | undefined;
  /** After how long trying again makes sense. */
  readonly retryAfterSecs: number | undefined;

  constructor(message: string, options: ApiErrorOptions = {}) {
    super(message, { hint: options.hint ?? "" });
    this.status = options.status ?? 0;
    this.code = options.code ?? new.target.code;
    this.requestId = options.requestId;
    this.retryAfterSecs = options.retryAfterSecs;
  }

  override toString(): string {
    const text = super.toString();
    return this.requestId === undefined ? text : `${text} [${this.code}, ${this.requestId}]`;
  }
}

/** No daemon answers there. */
export class UnreachableError extends ForkdError {}

/** The connection broke off. Whether the request was carried out is not known. */
export class ConnectionBrokenError extends ForkdError {}

/** The daemon did not answer in time. Whether the request was carried out is not known. */
export class RequestTimeoutError extends ForkdError {}

/** What answers is no forkd daemon, or one of another version. */
export class NotUnderstoodError extends ForkdError {}

/** The client was closed before. */
export class ClientClosedError extends ForkdError {}

/** The sandbox ended while something in it was being watched. */
export class SandboxGoneError extends ForkdError {}

/** The program `forkd`, which builds templates, is not on this machine. */
export class ProgramMissingError extends ForkdError {}

/** What a `BuildFailedError` is made of, besides its message. */
export interface BuildFailedOptions {
  hint?: string;
  number?: number | undefined;
  step?: string | undefined;
  exitCode?: number | undefined;
  output?: string | undefined;
  sandboxId?: string | undefined;
}

/** A template was not built. */
export class BuildFailedError extends ForkdError {
  /** The number of the step that failed, from 1; undefined if it was none of them. */
  readonly number: number | undefined;
  /** That step in one line. */
  readonly step: string | undefined;
  /** The exit code of its program, if it has one. */
  readonly exitCode: number | undefined;
  /** What its program wrote. */
  readonly output: string;
  /** The sandbox of the step, if it was to be kept. */
  readonly sandboxId: string | undefined;

  constructor(message: string, options: BuildFailedOptions = {}) {
    super(message, { hint: options.hint ?? "" });
    this.number = options.number;
    this.step = options.step;
    this.exitCode = options.exitCode;
    this.output = options.output ?? "";
    this.sandboxId = options.sandboxId;
  }
}
