/** The TypeScript blocks of a page: all of a page are one program, from top to bottom. */

import assert from "node:assert/strict";
import { execFile, execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename } from "node:path";
import { promisify } from "node:util";

import { ROOT } from "./paths.js";

const SDK = `${ROOT}/sdk/typescript`;

/** Where the programs are made; here they find the package by its name. */
const PLACE = `${SDK}/dist/documents`;

/** A piece of TypeScript in a page. */
export interface Block {
  /** Of its first line of code, from 1. */
  readonly line: number;
  readonly code: string;
  /** The lines that it prints, from its comments `// -> text`; none if it does not say. */
  readonly expected: readonly string[];
}

/** Every page that may have such blocks. */
export function pages(): string[] {
  const guides = readdirSync(`${ROOT}/docs/guides`).map((name) => `docs/guides/${name}`);
  const all = ["README.md", ...guides, "sdk/typescript/README.md", "sdk/conformance/README.md"];
  return all.filter((page) => page.endsWith(".md") && blocks(read(page)).length > 0);
}

/** A page's text. */
export function read(page: string): string {
  return readFileSync(`${ROOT}/${page}`, "utf8");
}

/** The TypeScript blocks of a text. */
export function blocks(text: string): Block[] {
  const found: Block[] = [];
  const lines = text.split("\n");
  let start: number | undefined;
  for (const [index, line] of lines.entries()) {
    if (start === undefined) {
      if (/^```(ts|typescript)\b/.test(line)) start = index + 1;
    } else if (line.startsWith("```")) {
      const code = lines.slice(start, index).join("\n");
      const expected = [...code.matchAll(/\/\/ -> (.*)$/gm)].map((match) => match[1] ?? "");
      found.push({ line: start + 1, code, expected });
      start = undefined;
    }
  }
  return found;
}

/** Begins the output of a block. */
const MARK = "=== block at line ";

/** A page as one program, which says where each block begins; line by line as in the page. */
export function program(page: string): string {
  const lines: string[] = [];
  for (const block of blocks(read(page))) {
    while (lines.length < block.line - 2) lines.push("");
    lines.push(`console.log("${MARK}${block.line}");`, ...block.code.split("\n"));
  }
  return [...lines, "export {};", ""].join("\n");
}

/** The name of a page's program. */
function name(page: string): string {
  return page.replace(/\.md$/, "").replaceAll("/", "-");
}

/** Compiles all pages, strictly. Throws what the compiler says. */
export function compile(): void {
  rmSync(PLACE, { recursive: true, force: true });
  mkdirSync(PLACE, { recursive: true });
  for (const page of pages()) writeFileSync(`${PLACE}/${name(page)}.ts`, program(page));
  const { compilerOptions } = JSON.parse(readFileSync(`${SDK}/tsconfig.json`, "utf8"));
  const own = { rootDir: ".", outDir: "out", declaration: false, noUnusedLocals: false };
  const config = { compilerOptions: { ...compilerOptions, ...own }, include: ["*.ts"] };
  writeFileSync(`${PLACE}/tsconfig.json`, JSON.stringify(config));
  try {
    execFileSync(`${SDK}/node_modules/.bin/tsc`, ["-p", PLACE], { encoding: "utf8" });
  } catch (error) {
    throw new Error((error as { stdout: string }).stdout);
  }
}

/** Runs a page's program, and compares what each block prints. */
export async function run(page: string): Promise<void> {
  const file = `${PLACE}/out/${name(page)}.js`;
  const { stdout } = await promisify(execFile)(process.execPath, [file], { timeout: 300_000 });
  compare(page, stdout);
}

/** Compares what a page's program printed with what the page says. */
export function compare(page: string, printed: string): void {
  const parts = new Map<number, string[]>();
  for (const part of printed.split(MARK).slice(1)) {
    const [line = "", ...rest] = part.split("\n");
    parts.set(Number(line), rest.slice(0, -1));
  }
  for (const block of blocks(read(page))) {
    if (block.expected.length === 0) continue;
    const where = `${basename(page)}:${block.line}`;
    assert.deepEqual(parts.get(block.line), block.expected, where);
  }
}
