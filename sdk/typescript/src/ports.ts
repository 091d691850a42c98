/** The TCP ports of a sandbox. */

import "./core/dispose.js";
import { once } from "node:events";
import { createServer, type AddressInfo, type Server, type Socket } from "node:net";

import { NoPreviewsError } from "./generated/codes.js";
import * as request from "./core/request.js";
import type * as models from "./generated/models.js";
import type { Transport } from "./transport.js";
import { fetchOver } from "./wire.js";

/** How a port is forwarded. */
export interface ForwardOptions {
  /** The local port; by default a free one. */
  local?: number | undefined;
  /** The local address; one that is no loopback address lets other machines in. */
  host?: string | undefined;
  /** Is told why a connection could not be served; it is reset then. */
  onError?: ((error: unknown) => void) | undefined;
}

/**
 * A local port whose connections are passed on to a port of a sandbox. With `await using` it ends
 * with the block.
 *
 * Each direction of a connection ends by itself. A connection that the sandbox does not take is
 * reset.
 */
export class Forward implements AsyncDisposable {
  /** The local address. */
  readonly host: string;
  /** The local port. */
  readonly port: number;
  readonly #server: Server;
  readonly #open: Set<Socket>;

  /** @internal */
  constructor(server: Server, open: Set<Socket>) {
    const { address, port } = server.address() as AddressInfo;
    this.host = address;
    this.port = port;
    this.#server = server;
    this.#open = open;
  }

  /** Both, as `127.0.0.1:8080`. */
  get address(): string {
    const host = this.host.includes(":") ? `[${this.host}]` : this.host;
    return `${host}:${this.port}`;
  }

  /** Ends it with all its connections. */
  async close(): Promise<void> {
    if (!this.#server.listening) return;
    const closed = once(this.#server, "close");
    this.#server.close();
    for (const socket of this.#open) socket.destroy();
    await closed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/**
 * Reaches what listens in a sandbox, on whatever address, loopback too. It does not matter what the
 * sandbox itself may reach.
 */
export class Ports {
  readonly #transport: Transport;
  readonly #id: string;

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    this.#transport = transport;
    this.#id = sandboxId;
  }

  /** What is listened on, by number and address. */
  list(): Promise<readonly models.Port[]> {
    return this.#transport.send(request.ports(this.#id));
  }

  /**
   * A byte stream to a port: a connected socket that may be half open. Throws `PortClosedError` if
   * nothing listens there.
   */
  connect(port: number): Promise<Socket> {
    return this.#transport.connect(request.connectPort(this.#id, port));
  }

  /**
   * A token for a preview of the port: its `url` opens it in a browser, for `ttlSecs` seconds, by
   * default an hour. Whoever has it reaches this one port. Throws `NoPreviewsError` if the daemon
   * was started without previews.
   */
  token(port: number, options: { ttlSecs?: number } = {}): Promise<models.PortToken> {
    return this.#transport.send(request.createPortToken(this.#id, port, options.ttlSecs));
  }

  /**
   * The address of a preview of the port, without a token: whoever asks there sends one, or the
   * port is public. Throws `NoPreviewsError` if the daemon was started without previews.
   */
  async url(port: number): Promise<string> {
    const { previewUrl } = await this.#transport.send(request.sandbox(this.#id));
    if (previewUrl === undefined) {
      throw new NoPreviewsError("the daemon was started without previews", {
        hint: "start it with `forkd serve --preview-listen 127.0.0.1:8890`",
      });
    }
    return previewUrl.replace("{port}", String(port));
  }

  /** The host in `url`, with the port of previews. */
  async host(port: number): Promise<string> {
    return (await this.url(port)).replace(/^.*:\/\//, "");
  }

  /**
   * Asks a server in the sandbox by HTTP, as the built-in `fetch` does, over a connection of its
   * own: it needs no preview and opens no port of this machine. `path` begins with `/`. The server
   * is told the host `localhost`. Redirects are not followed.
   *
   * Throws `PortClosedError` if nothing listens there.
   */
  async fetch(port: number, path: string, init: RequestInit = {}): Promise<Response> {
    const asked = new Request(new URL(path, `http://localhost:${port}`), init);
    return fetchOver(await this.connect(port), asked);
  }

  /** Makes all tokens for the port worthless. */
  revokeTokens(port: number): Promise<void> {
    return this.#transport.send(request.revokePortTokens(this.#id, port));
  }

  /** Makes the port one of this machine. */
  async forward(port: number, options: ForwardOptions = {}): Promise<Forward> {
    const { local = 0, host = "127.0.0.1", onError = () => {} } = options;
    const open = new Set<Socket>();
    const keep = (socket: Socket): void => {
      open.add(socket);
      socket.once("close", () => open.delete(socket));
    };
    const server = createServer({ allowHalfOpen: true, noDelay: true }, (near) => {
      keep(near);
      const reset = (error: unknown): void => {
        if (near.destroyed) return;
        near.resetAndDestroy();
        onError(error);
      };
      // Who goes away before it is served is no error.
      near.on("error", () => near.destroy());
      this.connect(port).then((far) => {
        keep(far);
        join(near, far, reset);
      }, reset);
    });
    server.listen(local, host);
    await once(server, "listening");
    return new Forward(server, open);
  }
}

/** Passes both directions on to their ends. */
function join(near: Socket, far: Socket, reset: (error: unknown) => void): void {
  far.on("error", reset);
  near.once("close", () => {
    // In order it has ended by itself; what it still has to send is sent.
    if (!far.writableEnded || !far.readableEnded) far.destroy();
  });
  if (near.destroyed) {
    far.destroy();
    return;
  }
  near.pipe(far);
  far.pipe(near);
}
