/** Byte streams to ports, over TCP and a Unix socket, from a server that stands for a daemon. */

import assert from "node:assert/strict";
import { once } from "node:events";
import * as http from "node:http";
import { mkdtempSync, rmSync } from "node:fs";
import { connect, createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";

import { Client, type Ports } from "forkd-sdk";
import { Sandbox } from "forkd-sdk";

import { Transport } from "../../src/transport.js";
import { parse } from "../../src/core/target.js";
import * as fake from "../fake.js";

const place = mkdtempSync(join(tmpdir(), "forkd-sdk-"));
const servers: Server[] = [];

after(() => {
  for (const server of servers) server.close();
  rmSync(place, { recursive: true });
});

const UPGRADE = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: tcp\r\n\r\n";
const refusal = JSON.stringify({ error: "nothing listens", code: "port_closed", hint: "wait" });
const CLOSED = `HTTP/1.1 409 Conflict\r\ncontent-length: ${refusal.length}\r\n\r\n${refusal}`;

interface Daemon {
  readonly ports: Ports;
  readonly heads: string[];
  answer: string;
  behave: (socket: Socket) => void;
}

/** Speaks first, and ends when it has heard the end. */
function greetAndEcho(socket: Socket): void {
  socket.write("hello");
  socket.pipe(socket);
}

/** One on TCP and one on a Unix socket, each with the ports of a sandbox behind it. */
async function daemons(): Promise<Daemon[]> {
  const found: Daemon[] = [];
  for (const kind of ["tcp", "unix"]) {
    const heads: string[] = [];
    const server = createServer({ allowHalfOpen: true }, (socket) => {
      let head = "";
      socket.on("error", () => {});
      const read = (piece: Buffer): void => {
        head += piece.toString("latin1");
        if (!head.endsWith("\r\n\r\n")) return;
        socket.off("data", read);
        heads.push(head);
        socket.write(daemon.answer);
        if (daemon.answer === UPGRADE) daemon.behave(socket);
        else socket.end();
      };
      socket.on("data", read);
    });
    servers.push(server);
    const path = join(place, `s${servers.length}`);
    if (kind === "tcp") server.listen(0, "127.0.0.1");
    else server.listen(path);
    await once(server, "listening");
    const tcp = kind === "tcp" ? (server.address() as AddressInfo).port : 0;
    const target = parse(kind === "tcp" ? `http://127.0.0.1:${tcp}` : `unix:${path}`);
    const transport = new Transport(target, { token: "secret", maxRetries: 0 });
    const { ports } = new Sandbox(transport, fake.sandbox() as never);
    const daemon: Daemon = { ports, heads, answer: UPGRADE, behave: greetAndEcho };
    found.push(daemon);
  }
  return found;
}

/** All that comes until the end. An iterator would end the other direction too. */
async function all(socket: Socket): Promise<Buffer> {
  const pieces: Buffer[] = [];
  socket.on("data", (piece: Buffer) => pieces.push(piece));
  await once(socket, "end");
  return Buffer.concat(pieces);
}

const data = Buffer.from(Array.from({ length: 1 << 20 }, (_, at) => (at ^ (at >> 8)) & 255));

/** Sends the data, ends, and hears all of it back behind the greeting. */
async function use(socket: Socket): Promise<void> {
  socket.write(data);
  socket.end();
  const back = await all(socket);
  assert.equal(back.subarray(0, 5).toString(), "hello");
  assert.ok(back.subarray(5).equals(data), `${back.length} bytes`);
}

/** Whether a connection is reset, and not ended. */
async function isReset(port: number): Promise<boolean> {
  const socket = connect(port, "127.0.0.1");
  return await all(socket).then(
    () => false,
    (error: { code?: string }) => error.code === "ECONNRESET",
  );
}

test("a socket carries all from the first byte, and each direction ends by itself", async () => {
  for (const { ports, heads } of await daemons()) {
    await use(await ports.connect(80));
    const [first, ...lines] = (heads[0] ?? "").toLowerCase().split("\r\n");
    assert.equal(first, "get /v1/sandboxes/sb-1/ports/80 http/1.1");
    for (const line of ["connection: upgrade", "upgrade: tcp", "authorization: bearer secret"]) {
      assert.ok(lines.includes(line), `${line}: ${heads[0]}`);
    }
  }
});

test("what the other end has ended can still be written to", async () => {
  for (const daemon of await daemons()) {
    let heard: Promise<Buffer> | undefined;
    daemon.behave = (socket) => {
      socket.end("done");
      heard = all(socket);
    };
    const socket = await daemon.ports.connect(80);
    assert.equal((await all(socket)).toString(), "done");
    socket.end("the last word");
    assert.equal((await heard)?.toString(), "the last word");
  }
});

test("a refusal is an error of its class", async () => {
  for (const daemon of await daemons()) {
    daemon.answer = CLOSED;
    const closed = { name: "PortClosedError", message: /nothing listens/, hint: "wait" };
    await assert.rejects(daemon.ports.connect(80), closed);
    daemon.answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    const other = { name: "NotUnderstoodError", message: /not 101/ };
    await assert.rejects(daemon.ports.connect(80), other);
    daemon.answer = "SSH-2.0\r\n\r\n";
    await assert.rejects(daemon.ports.connect(80), { name: "ConnectionBrokenError" });
  }
  const none = new Client(`unix:${place}/none`);
  const sandbox = new Sandbox(none.transport, fake.sandbox() as never);
  await assert.rejects(sandbox.ports.connect(80), { name: "UnreachableError" });
  none.close();
  await assert.rejects(sandbox.ports.connect(80), { name: "ClientClosedError" });
});

test("many connections pass a forwarded port at once, and end with it", async () => {
  for (const daemon of await daemons()) {
    const forward = await daemon.ports.forward(80);
    assert.equal(forward.address, `127.0.0.1:${forward.port}`);
    const open = (): Socket =>
      connect({ port: forward.port, host: forward.host, allowHalfOpen: true });
    await Promise.all([1, 2, 3, 4].map(() => use(open())));
    const held = open();
    await once(held, "data");
    const gone = once(held, "close");
    held.on("error", () => {});
    held.resume();
    held.once("end", () => held.end());
    await forward.close();
    await gone;
    await assert.rejects(once(connect(forward.port, forward.host), "connect"), {
      code: "ECONNREFUSED",
    });
    await forward.close();
  }
});

test("a connection that cannot be served is reset, and it is told why", async () => {
  for (const daemon of await daemons()) {
    const told: unknown[] = [];
    const forward = await daemon.ports.forward(80, { onError: (error) => told.push(error) });
    daemon.answer = CLOSED;
    assert.equal(await isReset(forward.port), true);
    assert.match(String(told[0]), /nothing listens/);
    await forward.close();
  }
});

test("a reset goes on as a reset where the transport tells it", async () => {
  const [tcp] = await daemons();
  assert.ok(tcp);
  tcp.behave = (socket) => {
    socket.once("data", () => socket.resetAndDestroy());
  };
  const forward = await tcp.ports.forward(80);
  const socket = connect(forward.port, "127.0.0.1");
  socket.write("x");
  await assert.rejects(all(socket), { code: "ECONNRESET" });
  await forward.close();
});

/** A server of HTTP that says what it was asked. */
function serveHttp(socket: Socket): void {
  const server = http.createServer((asked, answer) => {
    if (asked.url === "/empty") {
      answer.writeHead(204).end();
      return;
    }
    const pieces: Buffer[] = [];
    asked.on("data", (piece: Buffer) => pieces.push(piece));
    asked.on("end", () => {
      const body = Buffer.concat(pieces).toString();
      const { method, url, headers } = asked;
      answer.writeHead(418, { "set-cookie": ["a=1", "b=2"] });
      answer.write(`${method} ${url} ${headers.host} `);
      answer.end(`${headers["x-own"]} ${body}`);
    });
  });
  server.emit("connection", socket);
}

test("a server in a sandbox is asked by HTTP", async () => {
  for (const daemon of await daemons()) {
    daemon.behave = serveHttp;
    const init = { method: "PUT", headers: { "x-own": "1" }, body: "the body" };
    const answer = await daemon.ports.fetch(80, "/a%20b?c=d", init);
    assert.equal(answer.status, 418);
    assert.equal(await answer.text(), "PUT /a%20b?c=d localhost 1 the body");
    assert.match(answer.headers.get("set-cookie") ?? "", /a=1.*b=2/);
    const empty = await daemon.ports.fetch(80, "/empty");
    assert.deepEqual([empty.status, await empty.text()], [204, ""]);
    daemon.behave = (socket) => socket.end("SSH-2.0\r\n\r\n");
    await assert.rejects(daemon.ports.fetch(80, "/"), { code: /HPE_/ });
    daemon.behave = () => {};
    const signal = AbortSignal.timeout(50);
    await assert.rejects(daemon.ports.fetch(80, "/", { signal }), { name: "AbortError" });
    daemon.answer = CLOSED;
    await assert.rejects(daemon.ports.fetch(80, "/"), { name: "PortClosedError" });
  }
});
