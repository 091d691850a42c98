/** One request and how its answer is read. No I/O. */

import { BY_CODE } from "../generated/codes.js";
import { readErrorBody, type ErrorBody } from "../generated/models.js";
import { textOf } from "./bytes.js";
import { list, type Reader } from "./decode.js";
import { ApiError, NotUnderstoodError } from "./failure.js";

/** What a file is written from: bytes, or pieces of bytes. */
export type Content = Uint8Array | Iterable<Uint8Array> | AsyncIterable<Uint8Array>;

/** For requests that do not wait for a guest. */
export const TIMEOUT_SECS = 60;

/** What came back. */
export interface Answer {
  readonly status: number;
  /** Of a header whose name is in lower case. */
  readonly header: (name: string) => string | undefined;
  readonly content: Uint8Array;
}

/** What to send, and what the answer means. */
export interface Call<T> {
  readonly method: "GET" | "POST" | "PUT" | "DELETE";
  readonly path: string;
  readonly parse: (answer: Answer) => T;
  readonly query?: Readonly<Record<string, string>>;
  /** Sent as JSON. */
  readonly body?: unknown;
  /** Sent as it is. */
  readonly content?: Content;
  readonly headers?: Readonly<Record<string, string>>;
  /** How long the answer may take; null for no limit. */
  readonly timeoutSecs?: number | null;
  /** Repeat it as long as it is refused with `Retry-After`. */
  readonly patient?: boolean;
}

/** How long the answer may take; undefined for no limit. */
export function limitSecs(call: Call<unknown>): number | undefined {
  return call.timeoutSecs === undefined ? TIMEOUT_SECS : (call.timeoutSecs ?? undefined);
}

/** The answer's meaning, or throws the daemon's error. */
export function interpret<T>(call: Call<T>, answer: Answer): T {
  if (answer.status >= 300) throw errorOf(answer);
  return call.parse(answer);
}

/** The error for an answer that is not a success. */
export function errorOf(answer: Answer): ApiError | NotUnderstoodError {
  let body: ErrorBody;
  try {
    body = readErrorBody(JSON.parse(textOf(answer.content)), "ErrorBody");
  } catch {
    const shown = JSON.stringify(textOf(answer.content.subarray(0, 200)));
    return new NotUnderstoodError(`the answer has the status ${answer.status}: ${shown}`);
  }
  const retry = answer.header("retry-after") ?? "";
  return errorOfBody(body, {
    status: answer.status,
    requestId: answer.header("x-request-id"),
    retryAfterSecs: /^\d+$/.test(retry) ? Number(retry) : undefined,
  });
}

/** The error of the class that belongs to the code. */
export function errorOfBody(
  body: ErrorBody,
  more: {
    status?: number;
    requestId?: string | undefined;
    retryAfterSecs?: number | undefined;
  } = {},
): ApiError {
  const kind = BY_CODE.get(body.code) ?? ApiError;
  return new kind(body.error, { ...more, hint: body.hint, code: body.code });
}

/**
 * How long to wait before the same again; undefined if that is pointless.
 *
 * Only a refusal with `Retry-After` is repeated: nothing was begun then. Pieces cannot be sent
 * twice.
 */
export function retryDelaySecs(
  call: Call<unknown>,
  error: ApiError,
  attempt: number,
  retriesMax: number,
): number | undefined {
  if (error.retryAfterSecs === undefined) return undefined;
  if (call.content !== undefined && !(call.content instanceof Uint8Array)) return undefined;
  return attempt < retriesMax || call.patient ? error.retryAfterSecs : undefined;
}

/** For answers without content. */
export function nothing(): void {}

/** For answers that are a file. */
export function raw(answer: Answer): Uint8Array {
  return answer.content;
}

/** For answers that are text. */
export function plain(answer: Answer): string {
  return textOf(answer.content);
}

/** For answers that are one object. */
export function one<T>(reader: Reader<T>): (answer: Answer) => T {
  return (answer) => reader(json(answer), "the answer");
}

/** For answers that are a list. */
export function many<T>(reader: Reader<T>): (answer: Answer) => readonly T[] {
  return one(list(reader));
}

function json(answer: Answer): unknown {
  try {
    return JSON.parse(textOf(answer.content));
  } catch (error) {
    throw new NotUnderstoodError(`the answer is no JSON: ${String(error)}`);
  }
}
