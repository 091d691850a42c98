/** Each method asks for the right thing and understands the answer. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Readable } from "node:stream";
import { test } from "node:test";

import {
  Client,
  Commands,
  Files,
  Forward,
  Networks,
  Operations,
  Ports,
  Process,
  Sandbox,
  Sandboxes,
  Secrets,
  Snapshots,
} from "forkd-sdk";

import * as fake from "../fake.js";
import { FakeDaemon } from "../fake.js";
import { ROOT } from "../paths.js";

const SB = "/v1/sandboxes/sb-1";
const PREVIEWED = { ...fake.sandbox(), preview_url: "http://{port}-sb-1.localhost:8890" };
const PR = `${SB}/processes/pr-1`;
const EXEC = { stdout: "hi\n", stderr: "", exit_code: 0, timed_out: false };
const EVAL = { ...EXEC, state_lost: false, result: "3" };
const ENTRY = {
  name: "a",
  path: "/a",
  kind: "file",
  size_bytes: 1,
  mode: "0644",
  modified_at_unix: 1,
};
const GONE = undefined;
const KEY = `ed25519:${"0".repeat(64)}`;
const HUB_SNAPSHOT = {
  reference: "r/a:1@sha256:0", bytes: 3, tag: "t", created_at_unix: 1, ancestors: ["s"], key: KEY,
  trusted: false, image: "i", mem_size_mib: 64, vcpus: 1, accelerator: "tcg", vmm_version: "7",
  cpu_model: "max", memory_layers: 2, disk_overlays: 1, problem: "it needs another processor",
};
const RULES = { "a.example": [{ transform: { headers: { X: "${secrets.KEY}" } } }] };

const MEMBERSHIP = {
  network: "team",
  sandbox: "sb-1",
  host_name: "sb-1.team.forkd.internal",
  ipv4: "10.43.0.1",
  ipv6: "fd66:6f72:6b64:1::1",
};
const NETWORK = { name: "team", created_at_unix: 7, members: [MEMBERSHIP] };

interface Actors {
  c: Client;
  s: Sandbox;
  p: Process;
}

/** Route, answer, what is done, what was sent as query or JSON. */
type Case = [string, unknown, (actors: Actors) => Promise<unknown>, unknown];

const CASES: Case[] = [
  ["GET /v1/sandboxes", [], ({ c }) => c.sandboxes.list({ metadata: { a: "b" } }),
    { "metadata.a": "b" }],
  ["DELETE /v1/sandboxes/sb-2", GONE, ({ c }) => c.sandboxes.remove("sb-2"), {}],
  [`POST ${SB}/branch`, fake.snapshot("t"),
    ({ s }) => s.branch({ n: 2, mode: "diff", tag: "t", measureDiff: true }),
    { n: 2, mode: "diff", tag: "t", wait: true, measure_diff: true }],
  [`POST ${SB}/branch`, fake.snapshot("t"),
    ({ s }) => s.branch({ n: 1, network: { allowInternetAccess: false } }),
    { n: 1, wait: true, network: { allow_internet_access: false } }],
  [`POST ${SB}/branch`, fake.snapshot("t"), ({ s }) => s.snapshot("t"),
    { n: 0, tag: "t", wait: true }],
  [`POST ${SB}/exec`, EXEC, ({ s }) => s.commands.run(["ls"], { env: { A: "1" }, cwd: "/", user: "me" }),
    { args: ["ls"], env: { A: "1" }, cwd: "/", user: "me", timeout_secs: 60 }],
  [`POST ${SB}/exec`, EXEC,
    ({ s }) => s.commands.run("ls | wc", { stdin: Uint8Array.of(255), timeoutSecs: 0.2 }),
    { args: ["/bin/sh", "-c", "ls | wc"], stdin_base64: "/w==", timeout_secs: 1 }],
  [`POST ${SB}/exec`, EXEC, ({ s }) => s.commands.run("cat", { stdin: "a", timeoutSecs: null }),
    { args: ["/bin/sh", "-c", "cat"], stdin: "a", timeout_secs: 86_400 }],
  [`POST ${SB}/eval`, EVAL, ({ s }) => s.runCode("1+2", { timeoutSecs: null }),
    { code: "1+2", timeout_secs: 86_400 }],
  [`POST ${SB}/pause`, fake.sandbox(), ({ s }) => s.pause(), {}],
  [`POST ${SB}/resume`, fake.sandbox(), ({ s }) => s.resume(), {}],
  [`POST ${SB}/rollback`, fake.sandbox(), ({ s }) => s.rollback("t"), { snapshot_tag: "t" }],
  [`POST ${SB}/ping`, { epoch: 1, frames_rejected: 0, pong: true, requests_running: 0,
    uptime_ms: 2 }, ({ s }) => s.ping(), {}],
  [`GET ${SB}/network`, { allow_out: ["a.example"] }, ({ s }) => s.network(), {}],
  [`GET ${SB}/network/log`, { entries: [], missing: 0 }, ({ s }) => s.networkLog(7), { after: "7" }],
  [`PUT ${SB}/network`, fake.sandbox(),
    ({ s }) => s.setNetwork({ denyOut: ["198.51.100.7"], rules: RULES }),
    { deny_out: ["198.51.100.7"], rules: RULES }],
  [`PUT ${SB}/network`, fake.sandbox(), ({ s }) => s.setNetwork({ join: ["team"] }),
    { join: ["team"] }],
  ["GET /v1/networks", [NETWORK], ({ c }) => c.networks.list(), {}],
  ["POST /v1/networks", NETWORK, ({ c }) => c.networks.create("team"), { name: "team" }],
  ["GET /v1/networks/team", NETWORK, ({ c }) => c.networks.get("team"), {}],
  ["DELETE /v1/networks/team", GONE, ({ c }) => c.networks.remove("team"), {}],
  ["PUT /v1/networks/team/members/sb-1", fake.sandbox("sb-1", { networks: [MEMBERSHIP] }),
    ({ s }) => s.join("team"), {}],
  ["DELETE /v1/networks/team/members/sb-1", fake.sandbox(), ({ s }) => s.leave("team"), {}],
  ["GET /v1/secrets", [{ name: "KEY", set_at_unix: 7 }], ({ c }) => c.secrets.list(), {}],
  ["PUT /v1/secrets/KEY", GONE, ({ c }) => c.secrets.set("KEY", '{"k": 1}'), { k: 1 }],
  ["DELETE /v1/secrets/KEY", GONE, ({ c }) => c.secrets.remove("KEY"), {}],
  [`POST ${SB}/ports/80/token`, { url: "http://h/", host: "h", token: "t", expires_at_unix: 7 },
    ({ s }) => s.ports.token(80, { ttlSecs: 60 }), { ttl_secs: 60 }],
  [`PUT ${SB}/network`, fake.sandbox(),
    ({ s }) => s.setNetwork({
      allowPublicTraffic: true, publicPorts: [80], maskRequestHost: "localhost:${PORT}" }),
    { allow_public_traffic: true, public_ports: [80], mask_request_host: "localhost:${PORT}" }],
  [`GET ${SB}`, PREVIEWED, ({ s }) => s.ports.url(80), {}],
  [`GET ${SB}`, PREVIEWED, ({ s }) => s.ports.host(80), {}],
  [`DELETE ${SB}/ports/80/token`, GONE, ({ s }) => s.ports.revokeTokens(80), {}],
  [`GET ${SB}/ports`, [{ port: 80, address: "::1" }], ({ s }) => s.ports.list(), {}],
  [`GET ${SB}`, fake.sandbox(), ({ s }) => s.refresh(), {}],
  [`GET ${SB}/logs`, GONE, ({ s }) => s.logs(), {}],
  [`DELETE ${SB}`, GONE, ({ s }) => s.remove(), {}],
  [`POST ${SB}/processes`, fake.process(),
    ({ s }) => s.commands.start("x", { tty: { rows: 2, cols: 3 }, timeoutSecs: 1.5 }),
    { args: ["/bin/sh", "-c", "x"], tty: { rows: 2, cols: 3 }, timeout_secs: 2 }],
  [`GET ${SB}/processes`, [fake.process()], ({ s }) => s.commands.list(), {}],
  [`GET ${PR}`, fake.process(), ({ s }) => s.commands.connect("pr-1"), {}],
  [`GET ${PR}`, fake.process(), ({ p }) => p.refresh(), {}],
  [`POST ${PR}/signal`, GONE, ({ p }) => p.kill(), { signal: "KILL" }],
  [`POST ${PR}/signal`, GONE, ({ p }) => p.sendSignal("SIGINT"), { signal: "INT" }],
  [`POST ${PR}/signal`, GONE, ({ p }) => p.sendSignal(15), { signal: 15 }],
  [`POST ${PR}/stdin`, GONE, ({ p }) => p.closeStdin(), { eof: "true" }],
  [`POST ${PR}/resize`, GONE, ({ p }) => p.resize({ rows: 4, cols: 5 }), { rows: 4, cols: 5 }],
  [`DELETE ${PR}`, GONE, ({ p }) => p.remove(), {}],
  [`GET ${SB}/files/list`, [ENTRY], ({ s }) => s.files.list("/"), { path: "/" }],
  [`GET ${SB}/files/stat`, ENTRY, ({ s }) => s.files.stat("/a"), { path: "/a" }],
  [`DELETE ${SB}/files`, GONE, ({ s }) => s.files.remove("/a", { recursive: true }),
    { path: "/a", recursive: "true" }],
  [`POST ${SB}/files/mkdir`, GONE, ({ s }) => s.files.mkdir("/a"), { path: "/a" }],
  ["GET /v1/snapshots", [fake.snapshot()], ({ c }) => c.snapshots.list(), {}],
  ["GET /v1/snapshots/t/info", fake.snapshot("t"), ({ c }) => c.snapshots.info("t"), {}],
  ["GET /v1/snapshots/t/info", fake.snapshot("t"), ({ c }) => c.snapshots.get("t"), {}],
  ["POST /v1/snapshots", fake.snapshot("t"),
    ({ c }) => c.snapshots.build("t", { image: "i", vcpus: 2, cpu: "x86-64-v2", memSizeMib: 9, warm: ["true"], private: true }),
    { tag: "t", image: "i", vcpus: 2, cpu: "x86-64-v2", mem_size_mib: 9, warm: ["true"], private: true }],
  ["POST /v1/snapshots/t/compact", fake.snapshot("u"),
    ({ c }) => c.snapshots.compact("t", { to: "u", wait: false }), { to: "u", wait: false }],
  ["POST /v1/artifacts", fake.snapshot("u"),
    ({ c }) => c.snapshots.importArtifact(new Uint8Array(), { tag: "u", trustOnce: true }),
    { tag: "u", trust_once: "true" }],
  ["POST /v1/snapshots/t/push", { reference: "r/a:1", bytes: 3, bytes_sent: 2 },
    ({ c }) => c.snapshots.push("t", "r/a:1"), { reference: "r/a:1" }],
  ["POST /v1/pulls", fake.snapshot("u"),
    ({ c }) => c.snapshots.pull("r/a:1", { tag: "u", trustOnce: true }),
    { reference: "r/a:1", tag: "u", trust_once: true }],
  ["GET /v1/hub/snapshot", HUB_SNAPSHOT, ({ c }) => c.snapshots.hubInfo("r/a:1"), { reference: "r/a:1" }],
  ["GET /v1/hub/snapshots", { snapshots: [], is_complete: true },
    ({ c }) => c.snapshots.hubSearch("r", "team/"), { registry: "r", name: "team/" }],
  ["GET /v1/keys", { key: KEY, trusted: [] }, ({ c }) => c.keys.get(), {}],
  ["PUT /v1/keys/a", GONE, ({ c }) => c.keys.trust("a", KEY), { key: KEY }],
  ["DELETE /v1/keys/a", GONE, ({ c }) => c.keys.remove("a"), {}],
  ["DELETE /v1/snapshots/t", GONE, ({ c }) => c.snapshots.remove("t", { cascade: true }),
    { cascade: "true" }],
  ["DELETE /v1/snapshots/t", GONE, ({ c }) => c.snapshots.remove("t", { force: true }),
    { force: "true" }],
  ["GET /v1/operations", [fake.operation()], ({ c }) => c.operations.list({ state: "running" }),
    { state: "running" }],
  ["GET /v1/operations/op-1", fake.operation(), ({ c }) => c.operations.get("op-1"), {}],
  ["GET /v1/operations/op-1/wait", fake.operation(),
    ({ c }) => c.operations.wait("op-1", { timeoutSecs: 5 }), { timeout_secs: "5" }],
  ["POST /v1/operations/op-1/cancel", GONE, ({ c }) => c.operations.cancel("op-1"), {}],
  ["GET /v1/images", [{ name: "i", description: "d" }], ({ c }) => c.images(), {}],
  ["GET /healthz", { ok: true }, ({ c }) => c.health(), {}],
  ["GET /version", { version: "1", api: "v1" }, ({ c }) => c.version(), {}],
  ["GET /metrics", GONE, ({ c }) => c.metrics(), {}],
];

for (const [route, answer, act, expected] of CASES) {
  const what = act.toString().replace(/^.*?=> /, "").replace(/\s+/g, " ");
  test(`what ${what} sends`, async () => {
    const daemon = new FakeDaemon();
    const client = daemon.client();
    daemon.routes[`GET ${SB}`] = fake.ok(fake.sandbox());
    daemon.routes[`GET ${PR}`] = fake.ok(fake.process());
    const sandbox = await Sandbox.connect("sb-1", { client });
    const process = await sandbox.commands.connect("pr-1");
    daemon.routes[route] = answer === GONE ? fake.empty() : fake.ok(answer);
    await act({ c: client, s: sandbox, p: process });
    const { content, url } = daemon.request();
    assert.equal(daemon.asked.at(-1), route);
    const sent =
      content.length > 0 ? daemon.body() : Object.fromEntries(url.searchParams.entries());
    assert.deepEqual(sent, expected);
  });
}

test("every method has been tried by a test", () => {
  const tests = ["requests", "flows", "streams", "answers", "ports"].map((name) =>
    readFileSync(`${ROOT}/sdk/typescript/tests/pure/${name}.test.ts`, "utf8"),
  );
  const tried = tests.join("\n");
  const kinds = [
    Client, Commands, Files, Forward, Networks, Operations, Ports, Process, Sandbox, Sandboxes,
    Secrets, Snapshots,
  ];
  for (const kind of kinds) {
    for (const name of Object.getOwnPropertyNames(kind.prototype)) {
      const about = Object.getOwnPropertyDescriptor(kind.prototype, name);
      if (name === "constructor" || typeof about?.value !== "function") continue;
      assert.match(tried, new RegExp(`\\.${name}\\(`), `${kind.name}.${name}`);
    }
  }
});

test("a sandbox prints where it is, a client where it connects to", () => {
  assert.equal(new Client("unix:/s").address, "/s");
  assert.equal(new Client("http://h/").address, "http://h");
});

async function* pieces(): AsyncGenerator<Uint8Array> {
  yield Uint8Array.of(0x68, 0xc3);
  yield Uint8Array.of(0xa4, 0x6c, 0x6c, 0x6f);
}

test("a file is written from text, bytes, pieces and streams", async () => {
  const whole = new TextEncoder().encode("hällo");
  for (const data of [
    "hällo",
    whole,
    [whole.subarray(0, 2), whole.subarray(2)],
    pieces(),
    Readable.from(pieces()),
    new Blob([whole]).stream() as unknown as AsyncIterable<Uint8Array>,
  ]) {
    const daemon = new FakeDaemon();
    daemon.routes[`GET ${SB}`] = fake.ok(fake.sandbox());
    daemon.routes[`PUT ${SB}/files`] = fake.empty();
    const sandbox = await Sandbox.connect("sb-1", { client: daemon.client() });
    await sandbox.files.write("/a b", data, { mode: 0o755 });
    const { url, content } = daemon.request();
    assert.deepEqual(Object.fromEntries(url.searchParams), { path: "/a b", mode: "0755" });
    assert.equal(fake.textOf(content), "hällo");
  }
});

test("an artifact comes piece by piece", async () => {
  const daemon = new FakeDaemon();
  daemon.routes["GET /v1/snapshots/t/artifact"] = () => new fake.FakeAnswer(200, ["hä", "llo"]);
  const found = await fake.all(await daemon.client().snapshots.exportArtifact("t"));
  assert.deepEqual(found.map(fake.textOf), ["hä", "llo"]);
});

test("a file is read as text, bytes and pieces; what is no text is told", async () => {
  const daemon = new FakeDaemon();
  daemon.routes[`GET ${SB}`] = fake.ok(fake.sandbox());
  daemon.routes[`GET ${SB}/files`] = () => new fake.FakeAnswer(200, ["hä", "llo"]);
  const { files } = await Sandbox.connect("sb-1", { client: daemon.client() });
  assert.equal(await files.read("/a"), "hällo");
  assert.equal(fake.textOf(await files.read("/a", { format: "bytes" })), "hällo");
  const found = await fake.all(await files.stream("/a"));
  assert.deepEqual(found.map(fake.textOf), ["hä", "llo"]);
  const asked = Object.fromEntries(daemon.request().url.searchParams);
  assert.deepEqual(asked, { path: "/a", max_bytes: String(16 * 2 ** 30) });
  daemon.routes[`GET ${SB}/files`] = () => new fake.FakeAnswer(200, [Uint8Array.of(255)]);
  await assert.rejects(files.read("/a"), { name: "ForkdError", hint: /format: "bytes"/ });
});

test("names cannot leave their place in the path", async () => {
  const daemon = new FakeDaemon();
  const client = daemon.client();
  await assert.rejects(client.snapshots.info("../x?y"), /GET/);
  assert.match(daemon.request().url.href, /\/v1\/snapshots\/\.\.%2Fx%3Fy\/info$/);
  for (const name of ["..", ".", ""]) {
    await assert.rejects(async () => client.snapshots.remove(name), /is no name/);
  }
  assert.equal(daemon.requests.length, 1);
});

test("the token is sent", async () => {
  const daemon = new FakeDaemon();
  daemon.routes["GET /healthz"] = () => fake.ok({ ok: true });
  await daemon.client({ token: "secret" }).health();
  process.env.FORKD_TOKEN = "other";
  try {
    await daemon.client().health();
  } finally {
    delete process.env.FORKD_TOKEN;
  }
  const sent = daemon.requests.map((request) => request.headers.authorization);
  assert.deepEqual(sent, ["Bearer secret", "Bearer other"]);
});
