/** Answers are understood, or refused by name; errors have their class, hint and request id. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { CommandResult, Execution, ForkdError, Part, Sandbox } from "forkd-sdk";
import * as errors from "forkd-sdk/errors";

import { base64Of } from "../../src/core/bytes.js";
import { BY_CODE } from "../../src/generated/codes.js";
import { readSandbox, readSnapshot, readVersion } from "../../src/generated/models.js";
import * as fake from "../fake.js";
import { FakeDaemon } from "../fake.js";

async function connected(routes: Record<string, fake.Reply> = {}): Promise<Sandbox> {
  const daemon = new FakeDaemon();
  daemon.routes["GET /v1/sandboxes/sb-1"] = fake.ok(fake.sandbox());
  for (const [route, answer] of Object.entries(routes)) {
    daemon.routes[`POST /v1/sandboxes/sb-1/${route}`] = answer;
  }
  return Sandbox.connect("sb-1", { client: daemon.client() });
}

async function thrown<T extends Error>(
  kind: abstract new (...args: never[]) => T,
  work: () => unknown,
): Promise<T> {
  try {
    await work();
  } catch (error) {
    assert(error instanceof kind, String(error));
    return error;
  }
  assert.fail(`no ${kind.name}`);
}

test("an error has class, hint and request id", async () => {
  const daemon = new FakeDaemon();
  daemon.routes["GET /v1/sandboxes/sb-9"] = fake.error("sandbox_not_found", 404, "no sb-9");
  const error = await thrown(errors.SandboxNotFoundError, () =>
    Sandbox.connect("sb-9", { client: daemon.client() }),
  );
  assert(error instanceof ForkdError);
  assert.deepEqual([error.message, error.hint, error.status], ["no sb-9", "do something", 404]);
  assert.deepEqual([error.code, error.requestId], ["sandbox_not_found", "req-1"]);
  assert.equal(
    String(error),
    "SandboxNotFoundError: no sb-9 (hint: do something) [sandbox_not_found, req-1]",
  );
});

test("every code of the catalogue has a class of its own", () => {
  const kinds = new Set(BY_CODE.values());
  assert(kinds.size > 20 && kinds.size === BY_CODE.size);
  for (const [code, kind] of BY_CODE) {
    assert.equal(kind.code, code);
    assert.equal((errors as Record<string, unknown>)[kind.name], kind);
    assert(new kind("x") instanceof errors.ApiError);
  }
});

test("a word of a newer daemon is kept, and what is no text is refused", () => {
  const read = (state: unknown) => readSandbox({ ...fake.sandbox(), state }, "sandbox").state;
  assert.equal(read("hibernating"), "hibernating");
  assert.throws(() => read(1), errors.NotUnderstoodError);
});

test("a code of a newer daemon is an ApiError", async () => {
  const daemon = new FakeDaemon();
  daemon.routes["GET /version"] = fake.error("too_tired", 429);
  const error = await thrown(errors.ApiError, () => daemon.client().version());
  assert.equal(error.constructor, errors.ApiError);
  assert.equal(error.code, "too_tired");
});

test("what is no forkd daemon is not understood", async () => {
  for (const answer of [
    new fake.FakeAnswer(502, ["<html>bad gateway"]),
    new fake.FakeAnswer(200, ["<html>"]),
    fake.ok([]),
    fake.ok({ api: "v1" }),
    fake.ok({ api: "v1", version: 7 }),
    new fake.FakeAnswer(302, [], { location: "/" }),
  ]) {
    const daemon = new FakeDaemon();
    daemon.routes["GET /version"] = answer;
    await thrown(errors.NotUnderstoodError, () => daemon.client().version());
  }
  assert.throws(() => readVersion({ api: "v1" }, ""), /the answer lacks `Version\.version`/);
});

test("unknown fields are left out, missing optional ones are undefined", () => {
  const found = readSandbox(fake.sandbox("sb-1", { colour: "red", metadata: null, pid: 7 }), "");
  assert(!("colour" in found));
  assert.deepEqual([found.pid, found.netns, found.metadata], [7, undefined, {}]);
  assert.equal(readSnapshot(fake.snapshot("t", { pause_ms: 1 }), "").pauseMs, 1);
  const phases = { save_device_state: 1 };
  assert.deepEqual(readSnapshot(fake.snapshot("t", { phases_ms: phases }), "").phasesMs, phases);
  assert.throws(
    () => readSnapshot(fake.snapshot("t", { phases_ms: { pause: "long" } }), ""),
    /Snapshot\.phases_ms.*"long"/,
  );
});

test("failures of the connection are told apart", async () => {
  for (const [failure, kind] of [
    [fake.broken("ECONNREFUSED"), errors.UnreachableError],
    [fake.broken("ENOENT"), errors.UnreachableError],
    [fake.broken("UND_ERR_CONNECT_TIMEOUT"), errors.UnreachableError],
    [fake.broken("DEPTH_ZERO_SELF_SIGNED_CERT"), errors.UnreachableError],
    [fake.broken("ECONNRESET"), errors.ConnectionBrokenError],
    [new TypeError("terminated"), errors.ConnectionBrokenError],
  ] as const) {
    const daemon = new FakeDaemon();
    daemon.routes["GET /version"] = failure;
    await thrown(kind, () => daemon.client().version());
  }
});

test("only a refusal that says when is repeated", async () => {
  const busy = (): fake.FakeAnswer => fake.error("sandbox_busy", 503, "no", { "retry-after": "0" });
  const daemon = new FakeDaemon();
  daemon.routes["GET /version"] = [busy(), busy(), fake.ok({ version: "1", api: "v1" })];
  assert.equal((await daemon.client({ maxRetries: 2 }).version()).version, "1");
  daemon.routes["GET /version"] = [busy(), busy(), fake.ok({ version: "1", api: "v1" })];
  const client = daemon.client({ maxRetries: 1 });
  await thrown(errors.SandboxBusyError, () => client.version());
  daemon.requests.length = 0;
  daemon.routes["GET /version"] = [fake.error("internal", 500)];
  await thrown(errors.InternalError, () => daemon.client().version());
  assert.equal(daemon.requests.length, 1);
});

test("a closed client says so", async () => {
  const client = new FakeDaemon().client();
  await client.close();
  await thrown(errors.ClientClosedError, () => client.version());
});

test("a branch gives a snapshot, and for each child a sandbox or an error", async () => {
  const body = { error: "too full", code: "no_space", hint: "h" };
  const children = [{ sandbox: fake.sandbox("sb-2") }, { error: body }];
  const sandbox = await connected({ branch: fake.ok(fake.snapshot("t", { children }), 201) });
  const branch = await sandbox.branch({ n: 2 });
  assert.equal(branch.snapshot.tag, "t");
  assert.deepEqual(
    branch.children.map((child) => child.sandbox === undefined),
    [false, true],
  );
  assert(branch.children[1]?.error instanceof errors.NoSpaceError);
  assert.deepEqual(
    branch.sandboxes.map((child) => child.id),
    ["sb-2"],
  );
  await thrown(errors.NoSpaceError, () => branch.unwrap());
});

const EXEC = { stdout: "", stderr: "a\nlast\n", exit_code: 2, timed_out: false };

test("a command that fails is a result unless it is to be checked", async () => {
  const sandbox = await connected({ exec: () => fake.ok(EXEC) });
  const result = await sandbox.commands.run(["make"]);
  assert.deepEqual([result.exitCode, result.ok], [2, false]);
  const error = await thrown(errors.CommandFailedError, () =>
    sandbox.commands.run(["make"], { check: true }),
  );
  assert.match(error.message, /`make` ended .* 2: last/);
  assert.deepEqual(error.result, result);
});

test("a command whose time is over never looks like empty output", async () => {
  const sandbox = await connected({ exec: fake.ok({ ...EXEC, timed_out: true, stdout: "half" }) });
  const error = await thrown(errors.CommandTimeoutError, () => sandbox.commands.run("sleep 9"));
  assert.equal(error.result.stdout, "half");
});

test("output that is not text is exact in bytes", async () => {
  const answer = { ...EXEC, stdout: "\ufffd", stdout_base64: "/w==" };
  const result = await (await connected({ exec: fake.ok(answer) })).commands.run("x");
  assert.deepEqual([...result.stdoutBytes], [0xff]);
  assert.equal(result.stdout, "\ufffd");
});

test("a signal is named", async () => {
  const none = new Uint8Array();
  const ended = { args: ["x"], exitCode: 137, stdoutBytes: none, stderrBytes: none, signal: 9 };
  const result = new CommandResult(ended);
  assert.throws(() => result.throwForExit(), /SIGKILL/);
});

const EVAL = { stdout: "", stderr: "", exit_code: 0, timed_out: false, state_lost: false };

test("rich results are found by their type", async () => {
  const parts = [
    { mime: "text/plain", data: "<table>" },
    { mime: "text/html", data: "<b>x</b>" },
    { mime: "image/png", data: "iVBORw==" },
    { mime: "image/svg+xml", data: "<svg/>" },
    { mime: "application/json", data: '{"a": 1}' },
  ];
  const sandbox = await connected({ eval: fake.ok({ ...EVAL, result: "<table>", parts }) });
  const found = await sandbox.runCode("table");
  assert.deepEqual([found.text, found.html, found.svg], ["<table>", "<b>x</b>", "<svg/>"]);
  assert.equal(base64Of(found.png ?? new Uint8Array()), "iVBORw==");
  assert.deepEqual([found.json, found.latex, found.jpeg], [{ a: 1 }, undefined, undefined]);
});

test("what was shown has its forms too", async () => {
  const chart = { mime: "application/vnd.forkd.chart+json", data: '{"type": "pie"}' };
  const table = { mime: "application/vnd.forkd.table+json", data: '{"n": [1]}' };
  const figure = { parts: [{ mime: "image/png", data: "iVBORw==" }, chart] };
  const answer = { displays: [figure, { parts: [table] }], displays_left_out: 3 };
  const sandbox = await connected({ eval: fake.ok({ ...EVAL, ...answer }) });
  const found = await sandbox.runCode("plt.show()");
  const [shown, frame] = found.displays;
  assert.equal(base64Of(shown?.png ?? new Uint8Array()), "iVBORw==");
  assert.deepEqual([shown?.chart, shown?.table], [{ type: "pie" }, undefined]);
  assert.deepEqual([frame?.table, found.png, found.displaysLeftOut], [{ n: [1] }, undefined, 3]);
});

test("text and bytes are told apart by the type", () => {
  for (const [mime, isText] of [
    ["text/html", true],
    ["application/vnd.x+json", true],
    ["image/svg+xml", true],
    ["application/javascript", true],
    ["image/png", false],
    ["application/json; charset=latin-1", false],
  ] as const) {
    const content = fake.textOf(new Part(mime, "aGk=").content);
    assert.equal(content, isText ? "aGk=" : "hi", mime);
  }
});

test("a part that lies about its type does no harm", () => {
  const part = new Part("image/png", "not base64!");
  assert.equal(fake.textOf(part.content), "not base64!");
});

test("an exception in code is a result until it is thrown", async () => {
  const trace = "Traceback (most recent call last):\nValueError: no\n";
  const sandbox = await connected({ eval: fake.ok({ ...EVAL, error: trace, exit_code: 1 }) });
  const execution = await sandbox.runCode("x");
  assert(!execution.ok);
  const error = await thrown(errors.CodeError, () => execution.throwForError());
  assert.equal(error.message, "ValueError: no");
  assert.equal(error.execution, execution);
});

test("code whose time is over throws", async () => {
  const late = fake.ok({ ...EVAL, timed_out: true, error: "Interrupt" });
  const sandbox = await connected({ eval: late });
  await thrown(errors.CodeTimeoutError, () => sandbox.runCode("while True: pass"));
  const none = new Uint8Array();
  assert(new Execution({ stdoutBytes: none, stderrBytes: none }).throwForError().ok);
});

test("a sandbox or client that is printed does not show the token", async () => {
  const { inspect } = await import("node:util");
  const daemon = new FakeDaemon();
  daemon.routes["GET /v1/sandboxes/sb-1"] = fake.ok(fake.sandbox());
  const client = daemon.client({ token: "tk-1234" });
  const sandbox = await Sandbox.connect("sb-1", { client });
  const all = { showHidden: true, depth: 9 };
  assert(!(inspect(client, all) + inspect(sandbox, all)).includes("tk-1234"));
});
