/** Over real connections: a Unix socket, TCP, TLS; what is slow, broken or not there. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import * as http from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";

import { Client } from "forkd-sdk";
import * as errors from "forkd-sdk/errors";

import { OutputSource, WatchSource } from "../../src/core/source.js";
import { ByteStream, Stream } from "../../src/stream.js";
import { Transport } from "../../src/transport.js";
import type { Call } from "../../src/core/call.js";
import { parse } from "../../src/core/target.js";
import * as fake from "../fake.js";

const place = mkdtempSync(join(tmpdir(), "forkd-sdk-"));
const servers: http.Server[] = [];

after(() => {
  rmSync(place, { recursive: true });
  for (const server of servers) {
    server.close();
    server.closeAllConnections();
  }
});

type Handler = (request: http.IncomingMessage, answer: http.ServerResponse) => void;

/** The addresses of a server: on TCP, where the built-in `fetch` is used, and on a Unix socket. */
async function served(handler: Handler): Promise<[string, string]> {
  const socket = join(place, `s${servers.length}`);
  const [tcp, unix] = [http.createServer(handler), http.createServer(handler)];
  servers.push(tcp, unix);
  tcp.listen(0, "127.0.0.1");
  unix.listen(socket);
  await Promise.all([once(tcp, "listening"), once(unix, "listening")]);
  return [`http://127.0.0.1:${(tcp.address() as AddressInfo).port}`, `unix:${socket}`];
}

function call(more: Partial<Call<string>> = {}): Call<string> {
  const parse = (answer: { content: Uint8Array }): string => fake.textOf(answer.content);
  return { method: "POST", path: "/x", parse, ...more };
}

const transport = (address: string): Transport => new Transport(parse(address), { maxRetries: 0 });

/** Something is waited for by now. */
const waited = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 20));

const UNTIL_FETCH_WOULD_GIVE_UP: (number | null | undefined)[] = [undefined, 1000, null];

test("what is sent arrives, and the answer too, however it travels", async () => {
  const seen: unknown[] = [];
  const addresses = await served((request, answer) => {
    const pieces: Buffer[] = [];
    request.on("data", (piece: Buffer) => pieces.push(piece));
    request.on("end", () => {
      const { method, url, headers } = request;
      seen.push([method, url, headers["content-type"], Buffer.concat(pieces).toString()]);
      answer.writeHead(200, { "x-request-id": "req-7" });
      answer.end("héllo");
    });
  });
  async function* pieces(): AsyncGenerator<Uint8Array> {
    yield Buffer.from("a");
    yield Buffer.from("bc");
  }
  for (const address of addresses) {
    for (const timeoutSecs of UNTIL_FETCH_WOULD_GIVE_UP) {
      seen.length = 0;
      const own = transport(address);
      const query = { path: "/a b&c" };
      const sent = timeoutSecs === undefined ? {} : { timeoutSecs };
      assert.equal(await own.send(call({ body: { a: "é" }, query, ...sent })), "héllo");
      const headers = { "content-type": "x/y" };
      assert.equal(await own.send(call({ content: pieces(), headers, ...sent })), "héllo");
      assert.equal(await own.send(call({ method: "GET", ...sent })), "héllo");
      assert.deepEqual(seen, [
        ["POST", "/x?path=%2Fa+b%26c", "application/json", '{"a":"é"}'],
        ["POST", "/x", "x/y", "abc"],
        ["GET", "/x", undefined, ""],
      ]);
      own.close();
    }
  }
});

test("an answer that does not come, or stops coming, is a timeout", async () => {
  const addresses = await served((request, answer) => {
    if (request.url === "/half") answer.write("half");
    request.resume();
  });
  for (const address of addresses) {
    for (const path of ["/none", "/half"]) {
      const sent = transport(address).send(call({ path, timeoutSecs: 0.1 }));
      await assert.rejects(sent, errors.RequestTimeoutError);
    }
  }
});

test("as long as something comes nothing is over", async () => {
  const addresses = await served((request, answer) => {
    request.resume();
    let left = 6;
    const timer = setInterval(() => {
      answer.write(".");
      left -= 1;
      if (left > 0) return;
      clearInterval(timer);
      answer.end();
    }, 250);
  });
  // All of it takes longer than the limit; a busy machine may hold up a piece for a while.
  for (const address of addresses) {
    assert.equal(await transport(address).send(call({ timeoutSecs: 1.2 })), "......");
  }
});

test("a connection that breaks off is told", async () => {
  const addresses = await served((request, answer) => {
    if (request.url === "/half") answer.write("half", () => request.destroy());
    else request.destroy();
  });
  for (const address of addresses) {
    for (const path of ["/none", "/half"]) {
      const sent = transport(address).send(call({ path }));
      await assert.rejects(sent, { name: "ConnectionBrokenError", message: /broke off/ });
    }
  }
});

test("where nobody listens it is said how to start a daemon", async () => {
  const [tcp] = await served(() => {});
  const server = servers.at(-2);
  server?.close();
  for (const address of [tcp, `unix:${place}/none`]) {
    const health = new Client(address).health();
    await assert.rejects(health, { name: "UnreachableError", hint: /forkd serve/ });
  }
});

test("a stream comes piece by piece, and ends when it is closed", async () => {
  const ended: Promise<unknown>[] = [];
  const addresses = await served((request, answer) => {
    ended.push(once(request.socket, "close"));
    answer.writeHead(200, { "content-type": "text/event-stream" });
    answer.write(`event: sandbox.dead\ndata: ${JSON.stringify(fake.sandbox())}\nid: 1\n\n`);
  });
  for (const address of addresses) {
    const client = new Client(address);
    const events = await client.events();
    assert.equal((await events.next()).value?.type, "sandbox.dead");
    const next = events.next();
    await waited();
    await events.close();
    assert.equal((await next).done, true);
    await ended.at(-1);
    const changes = await new Stream(transport(address), new WatchSource("s", "/", false)).open();
    const change = changes.next();
    await waited();
    await changes.close();
    assert.equal((await change).done, true, "what cannot be asked for again ends well, too");
    const bytes = { method: "GET", path: "/", parse: () => {} } as const;
    const file = await ByteStream.open(transport(address), bytes);
    // It is left without having been read.
    await file.close();
    await ended.at(-1);
  }
});

test("a stream that is closed just when the answer ends does no harm", async () => {
  const event = 'event: exit\ndata: {"exit_code": 0, "signal": null, "timed_out": false}\n\n';
  const addresses = await served((_, answer) => {
    answer.writeHead(200, { "content-type": "text/event-stream" });
    answer.write(event);
    setImmediate(() => answer.end());
  });
  for (const address of addresses) {
    const own = transport(address);
    for (let number = 0; number < 300; number += 1) {
      const source = new OutputSource("sb-1", "pr-1");
      assert.deepEqual(await fake.all(new Stream(own, source)), []);
    }
    own.close();
  }
});

test("pieces that throw break the request off, and the error is theirs", async () => {
  const addresses = await served((request) => request.resume());
  async function* pieces(): AsyncGenerator<Uint8Array> {
    yield Buffer.from("a");
    throw new errors.ForkdError("the disk is broken");
  }
  for (const address of addresses) {
    const sent = transport(address).send(call({ content: pieces() }));
    await assert.rejects(sent, /the disk is broken/);
  }
});

test("an issuer that cannot be used is named", async () => {
  const file = join(place, "ca.pem");
  for (const content of [undefined, "no certificate"]) {
    if (content !== undefined) writeFileSync(file, content);
    const client = new Client("https://127.0.0.1:1", { caCert: file });
    await assert.rejects(client.health(), {
      name: "ForkdError",
      message: /ca\.pem/,
      hint: /FORKD_CA_CERT/,
    });
  }
  const client = new Client(`unix:${place}/none`, { caCert: join(place, "none.pem") });
  await assert.rejects(client.health(), errors.UnreachableError);
});
