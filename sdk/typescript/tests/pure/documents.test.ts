/** The TypeScript blocks of the documents are TypeScript, and what they print is compared. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { blocks, compare, compile, pages, program } from "../documents.js";
import { ROOT } from "../paths.js";

test("every block of the documents is strict TypeScript", () => {
  const guide = ["README.md", "docs/guides/typescript.md", "sdk/typescript/README.md"];
  for (const page of guide) assert(pages().includes(page), page);
  compile();
});

test("a block is found with its line and what it prints", () => {
  const page = "# P\n\n```ts\nconst x = 1;\n```\n\n```ts\nconsole.log(x); // -> 2\n```\n";
  assert.deepEqual(blocks(page), [
    { line: 4, code: "const x = 1;", expected: [] },
    { line: 8, code: "console.log(x); // -> 2", expected: ["2"] },
  ]);
});

test("a page's program has the page's lines", () => {
  const page = "docs/guides/typescript.md";
  const [lines, ours] = [readFileSync(`${ROOT}/${page}`, "utf8"), program(page)].map((text) =>
    text.split("\n"),
  );
  for (const block of blocks((lines ?? []).join("\n"))) {
    assert.equal(ours?.[block.line - 1], lines?.[block.line - 1]);
  }
});

test("other output than the page says is an error that names the block", () => {
  const page = "sdk/typescript/README.md";
  const block = blocks(readFileSync(`${ROOT}/${page}`, "utf8")).find((each) => each.expected[0]);
  assert(block !== undefined);
  const told = (lines: readonly string[]): string =>
    `=== block at line ${block.line}\n${lines.map((line) => `${line}\n`).join("")}`;
  compare(page, told(block.expected));
  assert.throws(() => compare(page, told(["other"])), new RegExp(`README.md:${block.line}`));
  assert.throws(() => compare(page, ""), new RegExp(`README.md:${block.line}`));
});
