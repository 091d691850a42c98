/** A daemon of answers that are written down beforehand. */

import assert from "node:assert/strict";

import { Client, type ClientOptions, type FetchAnswer, type FetchInit } from "forkd-sdk";

/** An answer, an error of the connection, or what makes one of a request. */
export type Reply = FakeAnswer | Error | ((request: Asked) => FakeAnswer | Promise<FakeAnswer>);

/** What was asked. */
export interface Asked {
  readonly route: string;
  readonly url: URL;
  readonly method: string;
  readonly headers: Record<string, string>;
  readonly content: Uint8Array;
}

/** What comes back, piece by piece; `cut` ends it with a broken connection. */
export class FakeAnswer {
  closed = false;

  constructor(
    readonly status: number,
    readonly pieces: (string | Uint8Array)[] = [],
    readonly headers: Record<string, string> = {},
    readonly cut = false,
  ) {}
}

type Fields = Record<string, unknown>;

/** A sandbox as it comes over the wire. */
export function sandbox(name = "sb-1", more: Fields = {}): Fields {
  return {
    id: name,
    snapshot_tag: "py",
    created_at_unix: 1,
    state: "running",
    branch_count: 0,
    hostname: name,
    ...more,
  };
}

/** A snapshot as it comes over the wire. */
export function snapshot(tag = "py", more: Fields = {}): Fields {
  return {
    tag,
    dir: "/d",
    created_at_unix: 1,
    status: "ready",
    durable: true,
    bootable: true,
    chain_depth: 1,
    ancestors: [],
    dependents: [],
    memory_layer_bytes: 0,
    ...more,
  };
}

/** A process as it comes over the wire. */
export function process(more: Fields = {}): Fields {
  return {
    id: "pr-1",
    pid: 7,
    args: ["make"],
    state: "running",
    timed_out: false,
    created_at_unix: 1,
    output_from: 0,
    output_to: 0,
    ...more,
  };
}

/** An operation as it comes over the wire. */
export function operation(more: Fields = {}): Fields {
  const found = { id: "op-1", kind: "compact", state: "succeeded", step: "write" };
  return { ...found, created_at_unix: 1, ...more };
}

/** An answer of JSON. */
export function ok(content: unknown, status = 200): FakeAnswer {
  return new FakeAnswer(status, [JSON.stringify(content)]);
}

/** An answer without content. */
export function empty(): FakeAnswer {
  return new FakeAnswer(204);
}

/** An error of the daemon. */
export function error(
  code: string,
  status: number,
  text = "no",
  headers: Record<string, string> = {},
): FakeAnswer {
  const body = JSON.stringify({ error: text, code, hint: "do something" });
  return new FakeAnswer(status, [body], { "x-request-id": "req-1", ...headers });
}

/** An event's name, data and id. */
export type Sent = readonly [name: string, data: unknown, id: string];

/** A stream of events. */
export function events(found: Sent[], options: { cut?: boolean; more?: string } = {}): FakeAnswer {
  const pieces = found.map(
    ([name, data, id]) => `event: ${name}\ndata: ${JSON.stringify(data)}\nid: ${id}\n\n`,
  );
  if (options.more !== undefined) pieces.push(options.more);
  const headers = { "content-type": "text/event-stream" };
  return new FakeAnswer(200, [": here\n\n", ...pieces], headers, options.cut);
}

/** An error as the built-in `fetch` throws it. */
export function broken(code: string, text = "it broke"): Error {
  const cause = Object.assign(new Error(text), { code });
  return new TypeError("fetch failed", { cause });
}

/** Answers by method and path; a list of answers is used up one by one. */
export class FakeDaemon {
  routes: Record<string, Reply | Reply[]> = {};
  readonly requests: Asked[] = [];

  /** A client of it. */
  client(options: ClientOptions = {}): Client {
    return new Client("http://fake", { fetch: (url, init) => this.fetch(url, init), ...options });
  }

  async fetch(text: string, init: FetchInit): Promise<FetchAnswer> {
    const url = new URL(text);
    const pieces: Uint8Array[] = [];
    if (init.body instanceof Uint8Array) pieces.push(init.body);
    else if (init.body !== undefined) for await (const piece of init.body) pieces.push(piece);
    const asked: Asked = {
      route: `${init.method} ${url.pathname}`,
      url,
      method: init.method,
      headers: init.headers,
      content: Buffer.concat(pieces),
    };
    this.requests.push(asked);
    let reply = await this.reply(asked);
    if (Array.isArray(reply)) reply = reply.shift();
    if (reply instanceof Error) throw reply;
    if (typeof reply === "function") reply = await reply(asked);
    const answer = reply ?? error("route_not_found", 404, asked.route);
    init.signal.throwIfAborted();
    init.signal.addEventListener("abort", () => {
      answer.closed = true;
    });
    return {
      status: answer.status,
      headers: { get: (name) => answer.headers[name] ?? null },
      body: body(answer),
    };
  }

  /** What answers this. */
  async reply(asked: Asked): Promise<Reply | Reply[] | undefined> {
    return this.routes[asked.route];
  }

  /** What was asked for, in order. */
  get asked(): string[] {
    return this.requests.map((request) => request.route);
  }

  /** The last request, or the one at this place. */
  request(index = -1): Asked {
    const found = this.requests.at(index);
    assert(found !== undefined, "nothing was asked");
    return found;
  }

  /** The JSON of a request. */
  body(index = -1): unknown {
    return JSON.parse(textOf(this.request(index).content));
  }
}

async function* body(answer: FakeAnswer): AsyncGenerator<Uint8Array> {
  try {
    for (const piece of answer.pieces) {
      yield typeof piece === "string" ? new TextEncoder().encode(piece) : piece;
    }
    if (answer.cut) throw broken("ECONNRESET");
  } finally {
    answer.closed = true;
  }
}

/** Bytes as text. */
export function textOf(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}

/** Everything that comes. */
export async function all<T>(source: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const each of source) found.push(each);
  return found;
}
