/**
 * HTTP over what the built-in `fetch` cannot do: a Unix socket, an issuer of certificates that is
 * named, an answer that takes longer than five minutes.
 *
 * Guarantees: an answer's body can be left unread; an abort ends the connection at any moment; a
 * connection that is not made within `CONNECT_SECS` is an error.
 */

import { X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import * as http from "node:http";
import * as https from "node:https";
import type { Socket } from "node:net";
import { Readable } from "node:stream";
import { rootCertificates } from "node:tls";

import { ForkdError } from "./core/failure.js";
import type { Target } from "./core/target.js";

/** What is asked of a `fetch`. */
export interface FetchInit {
  method: string;
  headers: Record<string, string>;
  body?: Uint8Array | AsyncIterable<Uint8Array>;
  duplex?: "half";
  redirect: "manual";
  signal: AbortSignal;
}

/** What of an answer is looked at. */
export interface FetchAnswer {
  readonly status: number;
  readonly headers: { get(name: string): string | null };
  readonly body: AsyncIterable<Uint8Array> | null;
}

/** The built-in `fetch`, or something that does the same. */
export type Fetch = (url: string, init: FetchInit) => Promise<FetchAnswer>;

/** How long a connection may take to be made. */
const CONNECT_SECS = 10;

/** After this time the built-in `fetch` gives up on an answer, whatever it is told. */
export const FETCH_SECS_MAX = 300;

/** Connections by Node's own HTTP client. */
export class NodeWire {
  readonly #target: Target;
  readonly #secure: boolean;
  readonly #agent: http.Agent;
  /** For connections that are not HTTP for long. */
  readonly #fresh: http.Agent;

  /** Throws if the certificate cannot be used. */
  constructor(target: Target, caCert: string | undefined) {
    this.#target = target;
    this.#secure = isSecure(target);
    const ca = this.#secure && caCert !== undefined ? [...rootCertificates, issuer(caCert)] : [];
    const agent = (keepAlive: boolean): http.Agent => {
      const options = { keepAlive, ...(ca.length > 0 ? { ca } : {}) };
      return this.#secure ? new https.Agent(options) : new http.Agent(options);
    };
    // Free connections do not keep the program alive.
    this.#agent = agent(true);
    this.#fresh = agent(false);
  }

  /** Closes the connections that nobody uses. */
  close(): void {
    this.#agent.destroy();
  }

  readonly fetch: Fetch = (url, init) =>
    new Promise((resolve, reject) => {
      const request = this.#request(this.#agent, url, init, reject);
      request.on("response", (answer) => resolve(answered(answer)));
      send(request, init.body);
    });

  /** A request whose connection becomes a byte stream, unless it is answered otherwise. */
  readonly upgrade = (url: string, init: FetchInit): Promise<Socket | FetchAnswer> =>
    new Promise((resolve, reject) => {
      const request = this.#request(this.#fresh, url, init, reject);
      request.on("response", (answer) => resolve(answered(answer)));
      request.on("upgrade", (_, socket: Socket, early: Buffer) => {
        // The other end may have nothing more to say, and listen on.
        socket.allowHalfOpen = true;
        socket.setNoDelay();
        if (early.length > 0) socket.unshift(early);
        resolve(socket);
      });
      request.end();
    });

  #request(
    agent: http.Agent,
    url: string,
    init: FetchInit,
    reject: (error: unknown) => void,
  ): http.ClientRequest {
    const socketPath = "socket" in this.#target ? this.#target.socket : undefined;
    const request = (this.#secure ? https : http).request(url, {
      agent,
      method: init.method,
      headers: init.headers,
      ...(socketPath === undefined ? {} : { socketPath }),
    });
    limitConnecting(request, this.#secure);
    request.on("error", reject);
    const stop = (): void => {
      reject(init.signal.reason);
      // With an error, as by the option `signal`, it would come out of a socket to which nobody
      // listens if the answer has just ended.
      request.destroy();
    };
    init.signal.addEventListener("abort", stop, { once: true });
    request.on("close", () => init.signal.removeEventListener("abort", stop));
    return request;
  }
}

function answered(answer: http.IncomingMessage): FetchAnswer {
  return {
    status: answer.statusCode ?? 0,
    headers: { get: (name) => answer.headers[name]?.toString() ?? null },
    body: answer,
  };
}

/** Sends one request over a connection that is there, and ends the connection with the answer. */
export function fetchOver(socket: Socket, asked: Request): Promise<Response> {
  return new Promise((resolve, reject) => {
    const { pathname, search, host } = new URL(asked.url);
    const headers = { ...Object.fromEntries(asked.headers), host, connection: "close" };
    const path = pathname + search;
    const { method, signal } = asked;
    const request = http.request({ createConnection: () => socket, method, path, headers, signal });
    request.on("error", reject);
    request.on("response", (answer) => resolve(responseOf(answer, method)));
    const body = asked.body as AsyncIterable<Uint8Array> | null;
    send(request, body ?? undefined);
  });
}

/** Statuses of answers without a body. */
const BODILESS = new Set([101, 204, 205, 304]);

function responseOf(answer: http.IncomingMessage, method: string): Response {
  const headers = new Headers();
  for (let n = 0; n < answer.rawHeaders.length; n += 2) {
    headers.append(answer.rawHeaders[n]!, answer.rawHeaders[n + 1]!);
  }
  const status = answer.statusCode ?? 0;
  const statusText = answer.statusMessage ?? "";
  if (method === "HEAD" || BODILESS.has(status)) {
    answer.resume();
    return new Response(null, { status, statusText, headers });
  }
  const body = Readable.toWeb(answer) as ReadableStream<Uint8Array>;
  return new Response(body, { status, statusText, headers });
}

/** Whether the connection is encrypted. */
export function isSecure(target: Target): boolean {
  return "url" in target && target.url.startsWith("https://");
}

function limitConnecting(request: http.ClientRequest, secure: boolean): void {
  const timer = setTimeout(() => {
    const error = new Error(`no connection within ${CONNECT_SECS} s`);
    request.destroy(Object.assign(error, { code: "ETIMEDOUT" }));
  }, CONNECT_SECS * 1000);
  const stop = (): void => clearTimeout(timer);
  request.on("close", stop);
  request.on("socket", (socket) => {
    if (!socket.connecting) stop();
    else socket.once(secure ? "secureConnect" : "connect", stop);
  });
}

function send(request: http.ClientRequest, body: FetchInit["body"]): void {
  if (body === undefined || body instanceof Uint8Array) {
    request.end(body);
    return;
  }
  const pieces = Readable.from(body);
  pieces.on("error", (error) => request.destroy(error));
  request.on("close", () => pieces.destroy());
  pieces.pipe(request);
}

function issuer(file: string): string {
  try {
    const text = readFileSync(file, "utf8");
    return new X509Certificate(text).toString();
  } catch (error) {
    throw new ForkdError(`the certificate \`${file}\` cannot be used: ${String(error)}`, {
      hint: "FORKD_CA_CERT names a file with the issuer's certificate in PEM",
      cause: error,
    });
  }
}
