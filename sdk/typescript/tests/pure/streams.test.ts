/** Streams: output, changes of files, events and builds, also over connections that break. */

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { Sandbox } from "forkd-sdk";
import * as errors from "forkd-sdk/errors";

import { clock } from "../../src/core/clock.js";
import { OutputSource, RECONNECTS_MAX } from "../../src/core/source.js";
import { EventCutter } from "../../src/core/sse.js";
import * as fake from "../fake.js";
import { FakeDaemon, type Sent } from "../fake.js";

const SB = "/v1/sandboxes/sb-1";
const PR = `${SB}/processes/pr-1`;
const EXIT: Sent = ["exit", { exit_code: 0, signal: null, timed_out: false }, "9"];

let daemon: FakeDaemon;

beforeEach(() => {
  daemon = new FakeDaemon();
  clock.sleep = async () => {};
});

async function connected(...streams: (fake.FakeAnswer | Error)[]): Promise<Sandbox> {
  daemon.routes = {
    [`GET ${SB}`]: fake.ok(fake.sandbox()),
    [`POST ${SB}/processes`]: () => fake.ok(fake.process(), 201),
    [`POST ${PR}/stdin`]: () => fake.empty(),
    [`DELETE ${PR}`]: () => fake.empty(),
    [`GET ${PR}/output`]: streams,
  };
  return Sandbox.connect("sb-1", { client: daemon.client() });
}

test("output is called back with and collected", async () => {
  const stream = fake.events([
    ["stdout", { text: "hé" }, "3"],
    ["stderr", { base64: "/w==" }, "4"],
    EXIT,
  ]);
  const seen: string[] = [];
  const sandbox = await connected(stream);
  const onStdout = (text: string): unknown => seen.push(text);
  const result = await sandbox.commands.run("x", { stdin: "in", onStdout });
  assert.deepEqual(seen, ["hé"]);
  assert.deepEqual([result.stdout, [...result.stderrBytes], result.exitCode], ["hé", [255], 0]);
  assert.deepEqual(daemon.asked.slice(1), [
    `POST ${SB}/processes`,
    `POST ${PR}/stdin`,
    `GET ${PR}/output`,
    `DELETE ${PR}`,
  ]);
  const { hold_output: held } = daemon.body(1) as { hold_output?: boolean };
  assert.equal(held, true, "all of it is to be seen");
  assert.equal(fake.textOf(daemon.request(2).content), "in");
  assert.equal(daemon.request(2).url.searchParams.get("eof"), "true");
});

test("a callback's promise is awaited", async () => {
  const stream = fake.events([["stdout", { text: "a" }, "1"], ["stdout", { text: "b" }, "2"], EXIT]);
  const seen: string[] = [];
  const onStdout = async (text: string): Promise<void> => {
    await new Promise((resolve) => setImmediate(resolve));
    seen.push(text);
  };
  const result = await (await connected(stream)).commands.run("x", { onStdout });
  assert.deepEqual([seen, result.stdout], [["a", "b"], "ab"]);
});

test("a process is removed and its stream closed when the callback throws", async () => {
  const stream = fake.events([["stdout", { text: "a" }, "1"], EXIT]);
  const sandbox = await connected(stream);
  const onStdout = (): never => {
    throw new RangeError("stop");
  };
  await assert.rejects(sandbox.commands.run("x", { onStdout }), RangeError);
  assert.equal(daemon.asked.at(-1), `DELETE ${PR}`);
  assert(stream.closed);
});

test("reading goes on where the connection broke", async () => {
  const sandbox = await connected(
    fake.events([["stdout", { text: "ab" }, "2"]], { cut: true }),
    fake.broken("ECONNREFUSED"),
    fake.events([["stderr", { text: "c" }, "3"]]),
    fake.events([EXIT]),
  );
  const result = await (await sandbox.commands.start("x")).wait();
  assert.deepEqual([result.stdout, result.stderr], ["ab", "c"]);
  const output = daemon.requests.filter((request) => request.route.endsWith("output"));
  const from = output.map((request) => request.url.searchParams.get("from"));
  assert.deepEqual(from, [null, "2", "2", "3"]);
});

test("a daemon that stays away is given up", async () => {
  const refused = Array.from({ length: 20 }, () => fake.broken("ECONNREFUSED"));
  const first = fake.events([["stdout", { text: "a" }, "1"]], { cut: true });
  const process = await (await connected(first, ...refused)).commands.start("x");
  await assert.rejects(process.wait(), errors.UnreachableError);
  const tries = daemon.asked.filter((route) => route.endsWith("/output"));
  assert.equal(tries.length, 1 + RECONNECTS_MAX);
});

test("a refusal is not repeated", async () => {
  const sandbox = await connected(fake.error("sandbox_not_found", 404));
  const process = await sandbox.commands.start("x");
  await assert.rejects(process.wait(), errors.SandboxNotFoundError);
});

test("input is sent again until the program takes it", async () => {
  const sandbox = await connected();
  const waits = Array.from({ length: 9 }, () =>
    fake.error("input_waits", 503, "no", { "retry-after": "0" }),
  );
  daemon.routes[`POST ${PR}/stdin`] = [...waits, fake.empty()];
  const process = await sandbox.commands.start("x", { stdin: true });
  await process.sendStdin("data");
  const sent = daemon.requests.slice(-10).map((request) => fake.textOf(request.content));
  assert.deepEqual(sent, Array.from({ length: 10 }, () => "data"));
});

test("lost output is counted", async () => {
  const sandbox = await connected(fake.events([["lost", { bytes: 5 }, "5"], EXIT]));
  assert.equal((await (await sandbox.commands.start("x")).wait()).lostBytes, 5);
});

test("a sandbox that ends is told", async () => {
  const stream = fake.events([["gone", { reason: "it was removed" }, ""]]);
  const output = (await (await connected(stream)).commands.start("x")).output();
  await assert.rejects(output.next(), { name: "SandboxGoneError", message: /it was removed/ });
  assert(stream.closed);
  assert.deepEqual(await fake.all(output), []);
});

test("a process that was killed or ran out of time", async () => {
  const killed: Sent = ["exit", { exit_code: null, signal: 9, timed_out: false }, "1"];
  const late: Sent = ["exit", { exit_code: 137, signal: 9, timed_out: true }, "1"];
  const sandbox = await connected(fake.events([killed]), fake.events([late]));
  assert.equal((await (await sandbox.commands.start("x")).wait()).exitCode, 137);
  const process = await sandbox.commands.start("x");
  await assert.rejects(process.wait(), errors.CommandTimeoutError);
});

test("chunks carry the offset where reading can go on", async () => {
  const stream = fake.events([
    ["stdout", { text: "é" }, "2"],
    ["stdout", { text: "b" }, "3"],
    EXIT,
  ]);
  const chunks = await fake.all(await (await connected(stream)).commands.start("x"));
  assert.deepEqual(
    chunks.map((chunk) => [chunk.text, chunk.offset]),
    [
      ["é", 2],
      ["b", 3],
    ],
  );
});

test("leaving the loop closes the connection, and closing ends a loop that waits", async () => {
  const stream = fake.events([["stdout", { text: "a" }, "1"], EXIT]);
  const process = await (await connected(stream)).commands.start("x");
  for await (const chunk of process) {
    assert.equal(chunk.text, "a");
    break;
  }
  assert(stream.closed);
  const silent = new fake.FakeAnswer(200, [], { "content-type": "text/event-stream" });
  daemon.routes[`GET ${PR}/output`] = [silent];
  const output = process.output();
  const next = output.next();
  await output.close();
  assert.equal((await next).done, true);
});

test("a chunk that makes no sense is refused", () => {
  for (const data of ["nonsense", "[1]", '{"base64": "a"}', '{"other": 1}', '{"base64": 5}']) {
    const source = new OutputSource("sb-1", "pr-1");
    const read = (): unknown => source.read({ name: "stdout", data, id: "1" });
    assert.throws(read, errors.NotUnderstoodError, data);
  }
});

test("an answer that is no stream is refused", async () => {
  const sandbox = await connected(new fake.FakeAnswer(200, ["<html>"]));
  const process = await sandbox.commands.start("x");
  await assert.rejects(process.wait(), errors.NotUnderstoodError);
});

test("events are cut at any byte, with any end of line", () => {
  const text = ': alive\r\n\r\nevent: a\r\ndata: {"é": 1}\r\ndata:two\r\nid: 7\r\n\r\n\nid\nevent:b\n\n';
  const bytes = new TextEncoder().encode(text);
  for (let size = 1; size <= bytes.length; size += 1) {
    const cutter = new EventCutter();
    const found = [];
    for (let at = 0; at < bytes.length; at += size) {
      found.push(...cutter.push(bytes.subarray(at, at + size)));
    }
    assert.deepEqual(found, [
      { name: "a", data: '{"é": 1}\ntwo', id: "7" },
      { name: "b", data: "", id: "" },
    ]);
  }
});

test("a watch is open when the call ends, and is not made anew", async () => {
  const sandbox = await connected();
  daemon.routes[`GET ${SB}/files/watch`] = [
    fake.events([["created", { path: "/a" }, ""]], { cut: true }),
    fake.events([]),
  ];
  const changes = await sandbox.files.watch("/", { recursive: true });
  assert.equal(daemon.asked.at(-1), `GET ${SB}/files/watch`);
  assert.deepEqual((await changes.next()).value, { kind: "created", path: "/a" });
  await assert.rejects(changes.next(), errors.ConnectionBrokenError);
  assert.equal(daemon.asked.filter((route) => route.endsWith("watch")).length, 1);
});

test("events go on after the last one that came", async () => {
  daemon.routes["GET /v1/events"] = [
    fake.events([["sandbox.dead", fake.sandbox("sb-1", { state: "dead" }), "b-7"]], { cut: true }),
    fake.events([
      ["lost", { events: 3 }, "b-10"],
      ["operation.ended", fake.operation(), "b-11"],
    ]),
  ];
  await using events = await daemon.client().events({ after: "b-6", type: "" });
  const found = [];
  for (let number = 0; number < 3; number += 1) found.push((await events.next()).value);
  const types = found.map((event) => event?.type);
  assert.deepEqual(types, ["sandbox.dead", "lost", "operation.ended"]);
  assert.equal((found[0]?.data as { state: string }).state, "dead");
  assert.deepEqual([found[1]?.lost, found[2]?.id], [3, "b-11"]);
  const asked = daemon.requests.map((request) => request.headers["last-event-id"]);
  assert.deepEqual(asked, ["b-6", "b-7"]);
});

test("a sign of life moves the place to go on from", async () => {
  daemon.routes["GET /v1/events"] = [
    fake.events([], { more: "id: 40\n:\n\n", cut: true }),
    fake.events([["sandbox.dead", fake.sandbox("sb-1", { state: "dead" }), "41"]]),
  ];
  await using events = await daemon.client().events();
  assert.equal((await events.next()).value?.id, "41");
  const asked = daemon.requests.map((request) => request.headers["last-event-id"]);
  assert.deepEqual(asked, [undefined, "40"]);
});

test("a build tells its steps", async () => {
  const end = JSON.stringify({ snapshot: fake.snapshot("t") });
  daemon.routes["POST /v1/snapshots"] = [
    new fake.FakeAnswer(200, ['{"step": "boot"}\n{"st', 'ep": "warm"}\n', `${end}\n`]),
    new fake.FakeAnswer(200, ['{"error": {"error": "e", "code": "boot_failed", "hint": "h"}}\n']),
    new fake.FakeAnswer(200, ['{"step": "boot"}\n']),
  ];
  const steps: string[] = [];
  const options = { image: "i", onStep: (step: string): unknown => steps.push(step) };
  const { snapshots } = daemon.client();
  assert.equal((await snapshots.build("t", options)).tag, "t");
  assert.deepEqual(steps, ["boot", "warm"]);
  await assert.rejects(snapshots.build("t", options), errors.BootFailedError);
  await assert.rejects(snapshots.build("t", options), /went away/);
});
