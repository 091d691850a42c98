// Tells of tests as Rust's test harness does, so that `make test` reads both alike.

import { inspect } from "node:util";

const isFile = (name) => /\.[cm]?js$/.test(name);

function reasonOf(error) {
  const cause = error?.cause ?? error;
  return cause?.stack ?? inspect(cause);
}

export default async function* report(source) {
  const count = { ok: 0, FAILED: 0, ignored: 0 };
  const failures = [];
  for await (const { type, data } of source) {
    if (type === "test:stderr" || type === "test:stdout") yield data.message;
    if (type !== "test:pass" && type !== "test:fail") continue;
    if (data.details?.type === "suite") continue;
    const failed = type === "test:fail";
    // A file is a test of its own only where it does not even load.
    if (isFile(data.name) && !failed) continue;
    const skipped = data.skip !== undefined;
    const outcome = failed ? "FAILED" : skipped ? "ignored" : "ok";
    count[outcome] += 1;
    const reason = skipped && typeof data.skip === "string" ? `, ${data.skip}` : "";
    yield `test ${data.name} ... ${outcome}${reason}\n`;
    if (failed) failures.push([data.name, reasonOf(data.details?.error)]);
  }
  if (failures.length > 0) yield "failures:\n";
  for (const [name, reason] of failures) yield `---- ${name} ----\n${reason}\n`;
  const word = failures.length > 0 ? "FAILED" : "ok";
  const { ok, FAILED, ignored } = count;
  yield `test result: ${word}. ${ok} passed; ${FAILED} failed; ${ignored} ignored\n`;
}
