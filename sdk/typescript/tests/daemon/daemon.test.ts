/** What needs a daemon with real guests; FORKD_URL says where it is. One file: one at a time. */

import { test } from "node:test";

import { compile, pages, run } from "../documents.js";
import "./builds.js";
import "./conformance.js";
import "./search.js";

compile();

for (const page of pages()) {
  test(`every TypeScript block of ${page} does what it says`, () => run(page));
}
