/** A build with real guests that is aborted, at several moments, leaves no sandbox behind. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, Template } from "forkd-sdk";

for (const secs of [0.01, 3]) {
  test(`a build that is aborted after ${secs} s leaves nothing`, async () => {
    await using client = new Client();
    const signal = AbortSignal.timeout(secs * 1000);
    const template = Template.fromSnapshot("python").run("sleep 1000");
    await assert.rejects(template.build(undefined, { client, signal }), { name: "TimeoutError" });
    assert.deepEqual(await client.sandboxes.list(), []);
  });
}
