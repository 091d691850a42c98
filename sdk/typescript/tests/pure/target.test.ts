/** The daemon is looked for where the command line looks for it. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ofEnvironment, parse, shown } from "../../src/core/target.js";

test("addresses", () => {
  assert.deepEqual(parse("http://127.0.0.1:8889/"), { url: "http://127.0.0.1:8889" });
  assert.deepEqual(parse("https://h"), { url: "https://h" });
  assert.deepEqual(parse("unix:/run/s"), { socket: "/run/s" });
  assert.deepEqual(parse("unix:///run/s"), { socket: "/run/s" });
});

test("other text is refused with a remedy", () => {
  for (const text of ["", "127.0.0.1:8889", "unix:relative", "ftp://h"]) {
    assert.throws(() => parse(text), { name: "ForkdError", hint: /unix:/ });
  }
});

test("the environment decides", () => {
  for (const [environment, uid, found] of [
    [{ FORKD_URL: "http://h:1", FORKD_SOCKET: "/s" }, 0, "http://h:1"],
    [{ FORKD_SOCKET: "/s", FORKD_HOME: "/h" }, 0, "/s"],
    [{ FORKD_HOME: "/h" }, 0, "/h/run/forkd.sock"],
    [{}, 0, "/run/forkd/forkd.sock"],
    [{ XDG_RUNTIME_DIR: "/run/user/5" }, 5, "/run/user/5/forkd/forkd.sock"],
    [{ XDG_RUNTIME_DIR: "relative" }, 5, "/tmp/forkd-5/forkd.sock"],
    [{}, 5, "/tmp/forkd-5/forkd.sock"],
  ] as const) {
    assert.equal(shown(ofEnvironment(environment, uid)), found);
  }
});
