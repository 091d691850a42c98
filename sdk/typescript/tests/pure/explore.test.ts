/** The search keeps the best, removes the rest, and leaves nothing after errors and aborts. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { explore, Sandbox, type Node } from "forkd-sdk";
import * as errors from "forkd-sdk/errors";

import * as fake from "../fake.js";
import { FakeDaemon, type Asked, type FakeAnswer } from "../fake.js";

type Value = number | "None" | "'a'";

/** A daemon whose sandboxes hold one number `x`, and whose code changes or shows it. */
class Tree extends FakeDaemon {
  readonly values = new Map<string, Value>([["sb-0", 1]]);
  readonly snapshots = new Map<string, string[]>();
  readonly parents = new Map<string, string>();
  /** Sandboxes so far: no two have the same name. */
  made = 0;
  /** Waited for before a branch is taken. */
  gate: Promise<unknown> = Promise.resolve();
  /** What the first child of each branch is told of instead. */
  fault: Record<string, string> | undefined;

  override async reply(asked: Asked): Promise<FakeAnswer> {
    // As the network would: others come in between.
    await new Promise((resolve) => setImmediate(resolve));
    const [kind = "", name = "", verb = ""] = asked.url.pathname.split("/").slice(2);
    const body = asked.content.length > 0 ? JSON.parse(fake.textOf(asked.content)) : {};
    if (kind === "snapshots") {
      if (!this.snapshots.has(name)) return fake.error("snapshot_not_found", 404);
      this.drop(name);
      return fake.empty();
    }
    if (verb === "branch") await this.gate;
    const value = this.values.get(name);
    if (value === undefined) return fake.error("sandbox_not_found", 404);
    if (asked.method === "GET") return fake.ok(fake.sandbox(name));
    if (asked.method === "DELETE") {
      this.values.delete(name);
      return fake.empty();
    }
    return verb === "branch" ? this.branch(name, body) : this.evaluate(name, body.code);
  }

  drop(tag: string): void {
    for (const child of this.snapshots.get(tag) ?? []) this.values.delete(child);
    this.snapshots.delete(tag);
    for (const [below, parent] of this.parents) {
      if (parent === tag && this.snapshots.has(below)) this.drop(below);
    }
  }

  branch(source: string, body: { tag: string; n: number }): FakeAnswer {
    const names = Array.from({ length: body.n }, () => `sb-${(this.made += 1)}`);
    for (const name of names) this.values.set(name, this.values.get(source) ?? 0);
    const above = [...this.snapshots].find(([, children]) => children.includes(source));
    this.parents.set(body.tag, above?.[0] ?? "");
    this.snapshots.set(body.tag, names);
    const children: object[] = names.map((name) => ({ sandbox: fake.sandbox(name) }));
    if (this.fault !== undefined) children[0] = { error: this.fault };
    return fake.ok(fake.snapshot(body.tag, { children }), 201);
  }

  evaluate(name: string, code: string): FakeAnswer {
    const answer = { stdout: "", stderr: "", exit_code: 0, timed_out: false, state_lost: false };
    const failed = { ...answer, error: "Trace\nZeroDivisionError: division", exit_code: 1 };
    const x = this.values.get(name) ?? 0;
    const [, operator, operand] = /^x (\+=|\*=|=) (.+)$/.exec(code) ?? [];
    if (operand === "1 / 0") return fake.ok(failed);
    if (operator === "=") this.values.set(name, operand as Value);
    else if (operator === "+=") this.values.set(name, Number(x) + Number(operand));
    else if (operator === "*=") this.values.set(name, Number(x) * Number(operand));
    else if (x === "None") return fake.ok(answer);
    else if (code === "-abs(x - 10)") {
      return fake.ok({ ...answer, result: `${-Math.abs(Number(x) - 10)}` });
    } else return fake.ok({ ...answer, result: `${x}` });
    return fake.ok(answer);
  }

  get left(): [string[], string[]] {
    return [[...this.values.keys()], [...this.snapshots.keys()]];
  }
}

const NOTHING = [["sb-0"], []];

async function planted(): Promise<[Tree, Sandbox]> {
  const tree = new Tree();
  return [tree, await Sandbox.connect("sb-0", { client: tree.client() })];
}

test("the best path is found and only the best stay", async () => {
  const [tree, root] = await planted();
  {
    const options = { keep: 2, depth: 3 };
    await using found = await explore(root, ["x += 1", "x *= 3"], "-abs(x - 10)", options);
    // 1, +1 = 2 or *3 = 3; of 3, 6, 4, 9 stay 9 and 6; of 10, 27, 7, 18 the best is 10.
    assert.deepEqual(found.best?.path, ["x *= 3", "x *= 3", "x += 1"]);
    assert.deepEqual([found.best?.depth, found.tried], [3, 10]);
    const scores = found.nodes.map((node) => node.score + 0);
    assert.deepEqual(scores, [0, -3]);
    const alive = found.nodes.map((node) => node.sandbox.id);
    assert.deepEqual(new Set(tree.values.keys()), new Set(["sb-0", ...alive]));
  }
  assert.deepEqual(tree.left, NOTHING);
  assert.equal(tree.values.get("sb-0"), 1, "the source is not changed");
});

test("variants and score may be functions", async () => {
  const [tree, root] = await planted();
  const triple = async (sandbox: Sandbox): Promise<string> => {
    await sandbox.runCode("x *= 3");
    return "tripled";
  };
  const score = async (sandbox: Sandbox): Promise<number> =>
    -Math.abs(Number((await sandbox.runCode("x")).result) - 10);
  const found = await explore(root, ["x += 1", triple], score, { keep: 2, depth: 3 });
  assert.deepEqual(found.best?.path, [triple, triple, "x += 1"]);
  await found.close();
  const once = await explore(root, [triple], score);
  assert.equal(once.best?.value, "tripled");
  await once.close();
  assert.deepEqual(tree.left, NOTHING);
});

test("it stops when it is good enough", async () => {
  const [, root] = await planted();
  const found = await explore(root, ["x += 1"], "x", { depth: 50, enough: 4 });
  assert.deepEqual([found.best?.depth, found.best?.score], [3, 4]);
});

test("what can be tried may depend on the state", async () => {
  const [, root] = await planted();
  const moves = (node: Node): string[] => (node.depth === 2 ? [] : [`x += ${node.depth + 1}`]);
  const found = await explore(root, moves, "x", { depth: 9 });
  assert.deepEqual(found.best?.path, ["x += 1", "x += 2"]);
});

test("dead ends are noted and removed", async () => {
  const [tree, root] = await planted();
  const variants = ["x = 1 / 0", "x = None", "x = 'a'", "x += 1"];
  const found = await explore(root, variants, "x");
  assert.deepEqual(
    found.nodes.map((node) => node.score),
    [2],
  );
  const failures = found.failures.map((failure) => [failure.path[0], failure.error.message]);
  assert.deepEqual(failures.sort(), [
    ["x = 'a'", "the score is no number but 'a'"],
    ["x = 1 / 0", "ZeroDivisionError: division"],
  ]);
  await found.close();
  const none = await explore(root, ["x = 1 / 0"], "x", { depth: 3 });
  assert.deepEqual([none.best, none.nodes], [undefined, []]);
  await none.close();
  assert.deepEqual(tree.left, NOTHING);
});

test("an error leaves nothing, on every level", async () => {
  for (const depth of [1, 2]) {
    const [tree, root] = await planted();
    const score = async (sandbox: Sandbox): Promise<number> => {
      const value = Number((await sandbox.runCode("x")).result);
      if (value === depth + 1) throw new RangeError("stop");
      return value;
    };
    const search = explore(root, ["x += 1", "x += 0"], score, { keep: 2, depth: 3 });
    await assert.rejects(search, RangeError);
    assert.deepEqual(tree.left, NOTHING);
  }
});

test("an aborted search leaves nothing, also while a variant waits for ever", async () => {
  const [tree, root] = await planted();
  const controller = new AbortController();
  const { signal } = controller;
  const forever = (): Promise<number> => {
    assert.equal(tree.values.size, 2);
    setImmediate(() => controller.abort(new RangeError("stop")));
    return new Promise(() => {});
  };
  await assert.rejects(explore(root, ["x += 1"], forever, { signal }), RangeError);
  assert.deepEqual(tree.left, NOTHING);
  await assert.rejects(explore(root, ["x += 1"], "x", { signal }), RangeError);
});

test("an abort while a branch is under way leaves nothing", async () => {
  const [tree, root] = await planted();
  const controller = new AbortController();
  let open = (): void => {};
  tree.gate = new Promise<void>((resolve) => {
    open = resolve;
  });
  const search = explore(root, ["x += 1"], "x", { signal: controller.signal });
  while (!tree.asked.some((route) => route.endsWith("/branch"))) {
    await new Promise((resolve) => setImmediate(resolve));
  }
  controller.abort(new RangeError("stop"));
  setTimeout(open, 20);
  await assert.rejects(search, RangeError);
  assert.deepEqual(tree.left, NOTHING);
  assert.equal(tree.parents.size, 1, "it was branched after all");
});

test("so many children work at a time", async () => {
  const [, root] = await planted();
  let [now, most] = [0, 0];
  const busy = async (): Promise<number> => {
    now += 1;
    most = Math.max(most, now);
    await new Promise((resolve) => setImmediate(resolve));
    now -= 1;
    return 0;
  };
  const variants = Array.from({ length: 9 }, (_, at) => `x += ${at}`);
  await explore(root, variants, busy, { parallel: 3 });
  assert.equal(most, 3);
});

test("a search that makes no sense is refused", async () => {
  const [, root] = await planted();
  for (const wrong of [{ keep: 0 }, { depth: 0 }]) {
    await assert.rejects(explore(root, ["x += 1"], "x", wrong), /at least 1/);
  }
});

test("a child that could not be started is a dead end", async () => {
  const [tree, root] = await planted();
  tree.fault = { error: "full", code: "no_space", hint: "" };
  const found = await explore(root, ["x += 1", "x += 2"], "x");
  assert.deepEqual(found.best?.path, ["x += 2"]);
  assert(found.failures[0]?.error instanceof errors.NoSpaceError);
});
