/** A search with real guests that is aborted, at several moments, leaves nothing behind. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, explore, Sandbox } from "forkd-sdk";

const VARIANTS = ["import time; time.sleep(1)", "x += 1", "x += 2"];

for (const secs of [0.05, 2.5]) {
  test(`a search that is aborted after ${secs} s leaves nothing`, async () => {
    await using client = new Client();
    {
      await using sandbox = await Sandbox.create("python", { client });
      await sandbox.runCode("x = 0");
      const signal = AbortSignal.timeout(secs * 1000);
      const search = explore(sandbox, VARIANTS, "x", { keep: 2, depth: 50, signal });
      await assert.rejects(search, { name: "TimeoutError" });
      const left = (await client.sandboxes.list()).map((each) => each.id);
      assert.deepEqual(left, [sandbox.id]);
    }
    const snapshots = await client.snapshots.list();
    const branched = snapshots.filter((each) => each.info.branchedFrom !== undefined);
    assert.deepEqual(branched, []);
  });
}
