/** What takes several requests: creating, waiting, removing. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Sandbox } from "forkd-sdk";
import * as errors from "forkd-sdk/errors";

import { clock } from "../../src/core/clock.js";
import * as fake from "../fake.js";
import { FakeDaemon } from "../fake.js";

const CREATED = [fake.sandbox("sb-1")];
const IMAGES = [{ name: "python", description: "d" }];
const missing = (): fake.FakeAnswer => fake.error("snapshot_not_found", 404);

clock.sleep = async () => {};

test("a sandbox starts from the snapshot with the tag", async () => {
  const daemon = new FakeDaemon();
  daemon.routes["POST /v1/sandboxes"] = fake.ok(CREATED, 201);
  const bounds = { memoryLimitMib: 600, perChildNetns: true, network: { allowOut: ["x.org"] } };
  const options = { metadata: { a: "b" }, ttlSecs: 0.5, idleTimeoutSecs: 9, ...bounds };
  const sandbox = await Sandbox.create("py", { ...options, client: daemon.client() });
  assert.equal(sandbox.id, "sb-1");
  assert.deepEqual(daemon.body(), {
    snapshot_tag: "py",
    n: 1,
    metadata: { a: "b" },
    ttl_secs: 1,
    idle_timeout_secs: 9,
    memory_limit_mib: 600,
    per_child_netns: true,
    network: { allow_out: ["x.org"] },
  });
});

test("what a sandbox may reach is told and replaced", async () => {
  const daemon = new FakeDaemon();
  const policy = { allow_internet_access: false, deny_out: ["198.51.100.0/24"] };
  daemon.routes = {
    "POST /v1/sandboxes": fake.ok(CREATED, 201),
    "GET /v1/sandboxes/sb-1/network": fake.ok(policy),
    "PUT /v1/sandboxes/sb-1/network": fake.ok(fake.sandbox("sb-1")),
  };
  const sandbox = await Sandbox.create("py", { client: daemon.client() });
  const told = await sandbox.network();
  assert.deepEqual(told.denyOut, policy.deny_out);
  await sandbox.setNetwork(told);
  assert.deepEqual(daemon.body(), policy);
});

test("what was not asked for is not sent", async () => {
  const daemon = new FakeDaemon();
  daemon.routes["POST /v1/sandboxes"] = fake.ok(CREATED, 201);
  await daemon.client().sandboxes.create("py");
  assert.deepEqual(daemon.body(), { snapshot_tag: "py", n: 1 });
});

test("a template is built from the image of that name", async () => {
  const daemon = new FakeDaemon();
  daemon.routes = {
    "POST /v1/sandboxes": [missing(), fake.ok(CREATED, 201)],
    "GET /v1/images": fake.ok(IMAGES),
    "POST /v1/snapshots": fake.ok(fake.snapshot("python"), 201),
  };
  await Sandbox.create("python", { client: daemon.client() });
  assert.deepEqual(daemon.asked, [
    "POST /v1/sandboxes",
    "GET /v1/images",
    "POST /v1/snapshots",
    "POST /v1/sandboxes",
  ]);
  assert.deepEqual(daemon.body(2), { tag: "python", image: "python" });
});

test("neither snapshot nor image is an error that names the images", async () => {
  const daemon = new FakeDaemon();
  daemon.routes = { "POST /v1/sandboxes": missing(), "GET /v1/images": fake.ok(IMAGES) };
  await assert.rejects(Sandbox.create("ruby", { client: daemon.client() }), {
    name: "SnapshotNotFoundError",
    message: /`ruby`.*images: python/,
    requestId: "req-1",
  });
});

test("a template that somebody else builds is waited for", async () => {
  for (const first of [missing(), fake.error("snapshot_not_ready", 409)]) {
    const daemon = new FakeDaemon();
    daemon.routes = {
      "POST /v1/sandboxes": [first, fake.ok(CREATED, 201)],
      "GET /v1/images": fake.ok(IMAGES),
      "POST /v1/snapshots": fake.error("tag_taken", 409),
      "GET /v1/snapshots/python/info": [
        fake.ok(fake.snapshot("python", { status: "writing" })),
        fake.ok(fake.snapshot("python")),
      ],
    };
    const sandbox = await Sandbox.create("python", { client: daemon.client() });
    assert.equal(sandbox.id, "sb-1");
    const info = daemon.asked.filter((route) => route.endsWith("/info"));
    assert.equal(info.length, 2);
  }
});

test("a snapshot that fails or takes too long", async () => {
  const daemon = new FakeDaemon();
  const writing = (): fake.FakeAnswer => fake.ok(fake.snapshot("t", { status: "writing" }));
  daemon.routes["GET /v1/snapshots/t/info"] = [
    fake.ok(fake.snapshot("t")),
    fake.ok(fake.snapshot("t", { status: "failed", error: "full" })),
    ...Array.from({ length: 50 }, writing),
  ];
  const snapshot = await daemon.client().snapshots.get("t");
  await assert.rejects(snapshot.wait(), { name: "SnapshotNotReadyError", message: /full/ });
  await assert.rejects(snapshot.wait({ timeoutSecs: 0.5 }), { name: "RequestTimeoutError" });
});

test("an operation is waited for in pieces that the daemon allows", async () => {
  const daemon = new FakeDaemon();
  const running = fake.operation({ state: "running" });
  daemon.routes["GET /v1/operations/op-1/wait"] = [
    fake.ok(running),
    fake.ok(running),
    fake.ok({ ...running, state: "failed" }),
    fake.ok(running),
  ];
  const { operations } = daemon.client();
  assert.equal((await operations.wait("op-1", { timeoutSecs: 65 })).state, "failed");
  const waits = daemon.requests.map((request) => request.url.searchParams.get("timeout_secs"));
  assert.deepEqual(waits, ["30", "30", "5"]);
  await assert.rejects(operations.wait("op-1", { timeoutSecs: 2 }), errors.RequestTimeoutError);
});

test("`await using` removes the sandbox, also after an error", async () => {
  const daemon = new FakeDaemon();
  daemon.routes = {
    "POST /v1/sandboxes": fake.ok(CREATED, 201),
    "DELETE /v1/sandboxes/sb-1": fake.error("sandbox_not_found", 404),
  };
  await assert.rejects(async () => {
    await using sandbox = await Sandbox.create("py", { client: daemon.client() });
    throw new RangeError(sandbox.id);
  }, RangeError);
  assert.equal(daemon.asked.at(-1), "DELETE /v1/sandboxes/sb-1");
});

test("a branch with `await using` removes all that came of it", async () => {
  const daemon = new FakeDaemon();
  const removals = [
    fake.error("snapshot_not_ready", 409),
    fake.error("snapshot_in_use", 409),
    fake.empty(),
    missing(),
  ];
  daemon.routes = {
    "POST /v1/sandboxes": fake.ok(CREATED, 201),
    "POST /v1/sandboxes/sb-1/branch": () => fake.ok(fake.snapshot("t"), 201),
    "DELETE /v1/snapshots/t": removals,
  };
  const sandbox = await Sandbox.create("py", { client: daemon.client() });
  {
    await using branch = await sandbox.branch();
    assert.equal(branch.children.length, 0);
  }
  assert.equal(removals.length, 1);
  assert.equal(daemon.request().url.searchParams.get("cascade"), "true");
  await (await sandbox.branch()).remove();
});

test("a snapshot is forked, refreshed, compacted and removed", async () => {
  const daemon = new FakeDaemon();
  daemon.routes = {
    "GET /v1/snapshots/t/info": () => fake.ok(fake.snapshot("t", { chain_depth: 7 })),
    "POST /v1/sandboxes": fake.ok([fake.sandbox("sb-1"), fake.sandbox("sb-2")], 201),
    "POST /v1/snapshots/t/compact": fake.ok(fake.snapshot("u"), 201),
    "DELETE /v1/snapshots/t": fake.empty(),
  };
  const snapshot = await daemon.client().snapshots.get("t");
  const started = await snapshot.fork(2);
  assert.deepEqual(
    started.map((sandbox) => sandbox.id),
    ["sb-1", "sb-2"],
  );
  assert.equal((await snapshot.refresh()).chainDepth, 7);
  assert.equal((await snapshot.compact("u")).tag, "u");
  await snapshot.remove();
  assert.equal(daemon.request().url.search, "");
});

test("files exist or not", async () => {
  const daemon = new FakeDaemon();
  const entry = { name: "a", path: "/a", kind: "file", size_bytes: 1, mode: "0644" };
  daemon.routes = {
    "GET /v1/sandboxes/sb-1": fake.ok(fake.sandbox()),
    "GET /v1/sandboxes/sb-1/files/stat": [
      fake.ok({ ...entry, modified_at_unix: 1 }),
      fake.error("file_not_found", 404),
      fake.error("sandbox_not_found", 404),
    ],
  };
  const { files } = await daemon.client().sandboxes.connect("sb-1");
  assert(await files.exists("/a"));
  assert(!(await files.exists("/b")));
  await assert.rejects(files.exists("/c"), errors.SandboxNotFoundError);
});
