/** Answers that are read while they come. */

import "./core/dispose.js";
import type { Call } from "./core/call.js";
import { clock } from "./core/clock.js";
import {
  ConnectionBrokenError,
  NotUnderstoodError,
  RequestTimeoutError,
  UnreachableError,
} from "./core/failure.js";
import { backoffSecs, RECONNECTS_MAX, type Source } from "./core/source.js";
import { EventCutter, LineCutter, type SentEvent } from "./core/sse.js";
import type { Opened, Transport } from "./transport.js";

/**
 * What comes, as it comes: iterate it with `for await`.
 *
 * A connection that breaks is made anew where nothing is lost by that. Leaving the loop closes it,
 * as does its end.
 */
export class Stream<T> implements AsyncIterableIterator<T>, AsyncDisposable {
  readonly #transport: Transport;
  readonly #source: Source<T>;
  #opened: Opened | undefined;
  #came: AsyncIterator<SentEvent> | undefined;
  #attempt = 0;
  #closed = false;

  /** @internal */
  constructor(transport: Transport, source: Source<T>) {
    this.#transport = transport;
    this.#source = source;
  }

  /** @internal Opens it now rather than when it is read. */
  async open(): Promise<this> {
    if (this.#opened === undefined && !this.#closed) {
      const opened = await this.#transport.open(this.#source.request());
      this.#opened = opened;
      this.#came = this.#events(opened);
    }
    return this;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<T, undefined>> {
    while (!this.#closed) {
      try {
        const value = await this.#read();
        if (value !== undefined) return { done: false, value };
      } catch (error) {
        // Closed while it was waited for.
        if (this.#closed) break;
        await this.#openAgain(error);
      }
    }
    return { done: true, value: undefined };
  }

  async return(): Promise<IteratorResult<T, undefined>> {
    await this.close();
    return { done: true, value: undefined };
  }

  /** Ends it. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#drop();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** The next item; undefined if what came is not for the reader, or at the end. */
  async #read(): Promise<T | undefined> {
    await this.open();
    const event = await this.#came?.next();
    if (event === undefined || event.done === true) {
      if (this.#source.resumable && !this.#closed) {
        throw new ConnectionBrokenError("the stream ended before its last event");
      }
      await this.close();
      return undefined;
    }
    this.#attempt = 0;
    const item = this.#source.read(event.value);
    if (this.#source.finished) await this.close();
    return item;
  }

  /** Drops the connection; the next one is made after a while, or never. */
  async #openAgain(error: unknown): Promise<void> {
    this.#drop();
    const isBroken =
      error instanceof ConnectionBrokenError ||
      error instanceof RequestTimeoutError ||
      error instanceof UnreachableError;
    if (!isBroken || !this.#source.resumable || this.#attempt >= RECONNECTS_MAX) {
      this.#closed = true;
      throw error;
    }
    await clock.sleep(backoffSecs(this.#attempt));
    this.#attempt += 1;
  }

  #drop(): void {
    this.#opened?.end();
    this.#opened = undefined;
    this.#came = undefined;
  }

  async *#events(opened: Opened): AsyncGenerator<SentEvent> {
    const pieces = { [Symbol.asyncIterator]: () => opened.pieces };
    if (this.#source.form === "lines") {
      const lines = new LineCutter();
      for await (const piece of pieces) {
        for (const data of lines.push(piece)) yield { name: "line", data, id: "" };
      }
      return;
    }
    const kind = opened.header("content-type") ?? "nothing";
    if (!kind.startsWith("text/event-stream")) {
      throw new NotUnderstoodError(`the answer is no stream of events but ${kind}`);
    }
    const cutter = new EventCutter();
    for await (const piece of pieces) yield* cutter.push(piece);
  }
}

/** The bytes of a file, piece by piece: iterate it with `for await`. */
export class ByteStream implements AsyncIterableIterator<Uint8Array>, AsyncDisposable {
  readonly #opened: Opened;

  private constructor(opened: Opened) {
    this.#opened = opened;
  }

  /** @internal */
  static async open(transport: Transport, call: Call<void>): Promise<ByteStream> {
    return new ByteStream(await transport.open(call));
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<Uint8Array, undefined>> {
    return this.#opened.pieces.next();
  }

  async return(): Promise<IteratorResult<Uint8Array, undefined>> {
    await this.close();
    return { done: true, value: undefined };
  }

  /** Ends it. */
  async close(): Promise<void> {
    this.#opened.end();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
