/** Every scenario, against a real daemon with real guests. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client } from "forkd-sdk";

import { lacking, Player, scenarios, type Interface } from "./player.js";

/** The daemon's OpenAPI document. */
async function openapi(client: Client): Promise<Interface> {
  const parse = (answer: { content: Uint8Array }): Interface =>
    JSON.parse(Buffer.from(answer.content).toString());
  return client.transport.send({ method: "GET", path: "/openapi.json", parse });
}

for (const scenario of scenarios()) {
  test(scenario.name, async (context) => {
    await using client = new Client();
    const missing = lacking(scenario, await openapi(client));
    if (missing.length > 0) {
      context.skip(`the daemon lacks ${missing.join(", ")}`);
      return;
    }
    await new Player(client).play(scenario);
    assert.deepEqual(await client.sandboxes.list(), [], "it left sandboxes behind");
  });
}
