/** The transport: the only place that talks to the daemon, and that waits. */

import type { Socket } from "node:net";

import { joined, bytesOf } from "./core/bytes.js";
import {
  errorOf,
  interpret,
  limitSecs,
  retryDelaySecs,
  type Answer,
  type Call,
  type Content,
} from "./core/call.js";
import { clock } from "./core/clock.js";
import {
  ApiError,
  ClientClosedError,
  ConnectionBrokenError,
  ForkdError,
  NotUnderstoodError,
  RequestTimeoutError,
  UnreachableError,
} from "./core/failure.js";
import { SILENCE_SECS_MAX } from "./core/source.js";
import { baseUrl, shown, type Target } from "./core/target.js";
import {
  FETCH_SECS_MAX,
  isSecure,
  NodeWire,
  type Fetch,
  type FetchAnswer,
  type FetchInit,
} from "./wire.js";

/** How a transport connects. */
export interface TransportOptions {
  token?: string | undefined;
  caCert?: string | undefined;
  maxRetries: number;
  fetch?: Fetch | undefined;
}

/** An endless answer; whoever asked for it ends it. */
export interface Opened {
  readonly header: (name: string) => string | undefined;
  readonly pieces: AsyncIterator<Uint8Array>;
  /** Ends it at any moment. */
  end(): void;
}

/**
 * Sends calls to one daemon.
 *
 * Guarantees: a failure is a `ForkdError`; nothing is repeated but what was refused with
 * `Retry-After`; no connection keeps the program alive unless an answer is waited for.
 */
export class Transport {
  readonly target: Target;
  readonly #options: TransportOptions;
  #wire: NodeWire | undefined;
  #closed = false;

  constructor(target: Target, options: TransportOptions) {
    this.target = target;
    this.#options = options;
  }

  /** How another program reaches the daemon. */
  get way(): { target: Target; token: string | undefined; caCert: string | undefined } {
    const { token, caCert } = this.#options;
    return { target: this.target, token, caCert };
  }

  /** Closes all connections for good. */
  close(): void {
    this.#closed = true;
    this.#wire?.close();
  }

  /** The answer's meaning. */
  async send<T>(call: Call<T>): Promise<T> {
    for (let attempt = 0; ; attempt += 1) {
      try {
        return interpret(call, await this.#sendOnce(call));
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        const delay = retryDelaySecs(call, error, attempt, this.#options.maxRetries);
        if (delay === undefined) throw error;
        await clock.sleep(delay);
      }
    }
  }

  async #sendOnce(call: Call<unknown>): Promise<Answer> {
    const patience = new Patience(limitSecs(call));
    try {
      const answer = await this.#request(call, patience, limitSecs(call));
      return { ...head(answer), content: await this.#whole(answer, patience) };
    } catch (error) {
      throw this.#failure(error, patience);
    } finally {
      patience.end();
    }
  }

  /** An endless answer. */
  async open(call: Call<void>): Promise<Opened> {
    const endless = call.timeoutSecs === null;
    const patience = new Patience(limitSecs(call));
    try {
      const answer = await this.#request(call, patience, limitSecs(call));
      if (answer.status >= 300) {
        throw errorOf({ ...head(answer), content: await this.#whole(answer, patience) });
      }
      patience.limit(endless ? undefined : SILENCE_SECS_MAX);
      const pieces = this.#pieces(answer, patience);
      const end = (): void => {
        patience.end();
        patience.abort();
      };
      return { header: head(answer).header, pieces, end };
    } catch (error) {
      patience.end();
      throw this.#failure(error, patience);
    }
  }

  /** The byte stream that the connection becomes. It is half open when one end has ended it. */
  async connect(call: Call<void>): Promise<Socket> {
    const patience = new Patience(limitSecs(call));
    try {
      const [url, init] = this.#prepared(call, patience);
      const answer = await this.#ownWire().upgrade(url, init);
      if ("pipe" in answer) return answer;
      const content = await this.#whole(answer, patience);
      if (answer.status < 300) {
        throw new NotUnderstoodError(`the answer has the status ${answer.status}, not 101`);
      }
      throw errorOf({ ...head(answer), content });
    } catch (error) {
      throw this.#failure(error, patience);
    } finally {
      patience.end();
    }
  }

  async #request(
    call: Call<unknown>,
    patience: Patience,
    secs: number | undefined,
  ): Promise<FetchAnswer> {
    const [url, init] = this.#prepared(call, patience);
    return await this.#fetch(secs)(url, init);
  }

  /** The request as it goes over the wire. */
  #prepared(call: Call<unknown>, patience: Patience): [url: string, init: FetchInit] {
    if (this.#closed) throw new ClientClosedError("the client is closed", { hint: "make another" });
    const url = new URL(baseUrl(this.target) + call.path);
    for (const [name, value] of Object.entries(call.query ?? {})) url.searchParams.set(name, value);
    const headers: Record<string, string> = { "user-agent": "forkd-sdk-typescript" };
    if (this.#options.token) headers.authorization = `Bearer ${this.#options.token}`;
    Object.assign(headers, call.headers);
    let body: Uint8Array | AsyncIterable<Uint8Array> | undefined;
    if (call.content !== undefined) {
      body = sendable(call.content, patience);
    } else if (call.body !== undefined) {
      headers["content-type"] = "application/json";
      body = bytesOf(JSON.stringify(call.body));
    }
    const { signal } = patience;
    const init = { method: call.method, headers, redirect: "manual", signal } as const;
    return [url.href, body === undefined ? init : { ...init, body, duplex: "half" }];
  }

  /** What can wait for an answer that long. */
  #fetch(secs: number | undefined): Fetch {
    if (this.#options.fetch !== undefined) return this.#options.fetch;
    const named = isSecure(this.target) && this.#options.caCert !== undefined;
    if ("url" in this.target && !named && secs !== undefined && secs < FETCH_SECS_MAX) {
      // It takes more than `Fetch` promises.
      return globalThis.fetch as unknown as Fetch;
    }
    return this.#ownWire().fetch;
  }

  #ownWire(): NodeWire {
    this.#wire ??= new NodeWire(this.target, this.#options.caCert);
    return this.#wire;
  }

  async #whole(answer: FetchAnswer, patience: Patience): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    for await (const piece of answer.body ?? []) {
      patience.moved();
      pieces.push(piece);
    }
    return joined(pieces);
  }

  async *#pieces(answer: FetchAnswer, patience: Patience): AsyncGenerator<Uint8Array> {
    try {
      for await (const piece of answer.body ?? []) {
        patience.moved();
        yield new Uint8Array(piece);
      }
    } catch (error) {
      throw this.#failure(error, patience);
    } finally {
      patience.end();
    }
  }

  /** What an error of the connection means. */
  #failure(error: unknown, patience: Patience): unknown {
    if (error instanceof ForkdError) return error;
    // What gives the pieces threw it; a `fetch` may not pass it on.
    if (patience.fault !== undefined) return patience.fault.error;
    const where = `the daemon at ${shown(this.target)}`;
    if (patience.isOver) return new RequestTimeoutError(`${where} did not answer in time`);
    const [code, reason] = reasonOf(error);
    if (code !== undefined && UNREACHABLE.test(code)) {
      return new UnreachableError(`no daemon answers at ${shown(this.target)}: ${reason}`, {
        hint: "start it with `forkd serve`, or set FORKD_URL to where it is",
        cause: error,
      });
    }
    const text = `the connection to ${where} broke off: ${reason}`;
    return new ConnectionBrokenError(text, { cause: error });
  }
}

/** Codes of errors after which no connection was there. */
const UNREACHABLE = new RegExp(
  "^(ECONNREFUSED|ENOENT|EACCES|EPERM|ENOTSOCK|EPROTOTYPE|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|" +
    "ENETUNREACH|ETIMEDOUT|EADDRNOTAVAIL|UND_ERR_CONNECT_TIMEOUT|EPROTO|ERR_TLS_|ERR_SSL_|CERT_|" +
    "DEPTH_ZERO_SELF_SIGNED_CERT|SELF_SIGNED_CERT_IN_CHAIN|UNABLE_TO_)",
);

/** Code and text of the innermost error that has a code. */
function reasonOf(error: unknown): [code: string | undefined, text: string] {
  let found: [string | undefined, string] = [undefined, String(error)];
  for (let each: unknown = error; each instanceof Error; each = each.cause) {
    const { code } = each as { code?: unknown };
    if (typeof code === "string") found = [code, each.message || code];
  }
  return found;
}

function head(answer: FetchAnswer): Pick<Answer, "status" | "header"> {
  return {
    status: answer.status,
    header: (name) => answer.headers.get(name) ?? undefined,
  };
}

/** What a `fetch` can send; each piece that it takes is a movement. */
function sendable(content: Content, patience: Patience): Uint8Array | AsyncIterable<Uint8Array> {
  if (content instanceof Uint8Array) return content;
  return (async function* () {
    try {
      for await (const piece of content) {
        patience.moved();
        yield piece;
      }
    } catch (error) {
      patience.fault = { error };
      throw error;
    }
  })();
}

/** Breaks a request off when nothing has moved for so long. */
class Patience {
  /** Whether it was broken off for that. */
  isOver = false;
  /** What was to be sent could not be had. */
  fault: { readonly error: unknown } | undefined;
  readonly #controller = new AbortController();
  #secs: number | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(secs: number | undefined) {
    this.limit(secs);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** From now on so long; undefined for ever. */
  limit(secs: number | undefined): void {
    this.#secs = secs;
    this.end();
    if (secs === undefined) return;
    this.#timer = setTimeout(() => {
      this.isOver = true;
      this.abort();
    }, secs * 1000);
  }

  /** Something moved. */
  moved(): void {
    if (this.#timer !== undefined) this.limit(this.#secs);
  }

  /** No more is waited for. */
  end(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** Breaks the request off. */
  abort(): void {
    this.#controller.abort();
  }
}
