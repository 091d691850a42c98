/**
 * A `forkd.toml`, step by step, as text. Pure.
 *
 * What it may say, and what it means, is known to `forkd build` alone.
 */

import { ForkdError } from "./failure.js";
import type { Command } from "./request.js";

const READY_SECS = 60;

/** When a process that a template starts is ready: see `port` and `command`. */
export class Ready {
  /** @internal */
  constructor(
    /** As `forkd.toml` writes it. */
    readonly check: string,
    /** How long that may take. */
    readonly timeoutSecs: number,
  ) {}

  /** @internal */
  toString(): string {
    return `{ ${this.check}, timeout_secs = ${this.timeoutSecs} }`;
  }
}

/** How long a process may take to become ready; 60 seconds by default. */
export interface ReadyOptions {
  timeoutSecs?: number | undefined;
}

/** The process is ready when something listens on this port. */
export function port(number: number, options: ReadyOptions = {}): Ready {
  return new Ready(`port = ${whole(number)}`, Math.ceil(options.timeoutSecs ?? READY_SECS));
}

/**
 * The process is ready when this command succeeds.
 *
 * `/bin/sh` runs a string. A list is a program and its arguments.
 */
export function command(command: Command, options: ReadyOptions = {}): Ready {
  return new Ready(`command = ${words(command)}`, Math.ceil(options.timeoutSecs ?? READY_SECS));
}

/** How much an OCI image gets of the machine, if not the usual. */
export interface ImageOptions {
  memSizeMib?: number | undefined;
  vcpus?: number | undefined;
}

/** Whose the files of a copy are, and their permission bits, if not those in the context. */
export interface CopyOptions {
  /** `USER` or `USER:GROUP`. */
  owner?: string | undefined;
  mode?: number | undefined;
}

/** What a build begins with, and its steps. Each method gives a new one. */
export class Recipe {
  private constructor(
    /** The lines before the first step. */
    readonly head: string,
    /** The lines of each step. */
    readonly steps: readonly string[] = [],
  ) {}

  static fromSnapshot(name: string): Recipe {
    return new Recipe(`from = ${text(name)}\n`);
  }

  static fromImage(reference: string, { memSizeMib, vcpus }: ImageOptions): Recipe {
    let head = `from_image = ${text(reference)}\n`;
    if (memSizeMib !== undefined) head += `mem_size_mib = ${whole(memSizeMib)}\n`;
    if (vcpus !== undefined) head += `vcpus = ${whole(vcpus)}\n`;
    return new Recipe(head);
  }

  run(command: Command): Recipe {
    return this.#and(`run = ${words(command)}`);
  }

  copy(sources: string | readonly string[], to: string, { owner, mode }: CopyOptions): Recipe {
    const lines = [`copy = ${words(sources)}`, `to = ${text(to)}`];
    if (owner !== undefined) lines.push(`owner = ${text(owner)}`);
    if (mode !== undefined) lines.push(`mode = "${mode.toString(8).padStart(4, "0")}"`);
    return this.#and(...lines);
  }

  env(variables: Readonly<Record<string, string>>): Recipe {
    const pairs = Object.entries(variables).map(([name, value]) => `${text(name)} = ${text(value)}`);
    return this.#and(`env = { ${pairs.join(", ")} }`);
  }

  workdir(path: string): Recipe {
    return this.#and(`workdir = ${text(path)}`);
  }

  user(name: string): Recipe {
    return this.#and(`user = ${text(name)}`);
  }

  start(command: Command, ready: Ready | undefined): Recipe {
    const lines = [`start = ${words(command)}`];
    if (ready !== undefined) lines.push(`ready = ${ready}`);
    return this.#and(...lines);
  }

  toString(): string {
    return [this.head, ...this.steps].join("");
  }

  #and(...lines: string[]): Recipe {
    const step = ["", "[[step]]", ...lines].map((line) => `${line}\n`).join("");
    return new Recipe(this.head, [...this.steps, step]);
  }
}

/** A string of TOML: one of JSON, but for DEL and for halves of characters. */
function text(text: string): string {
  if (/\p{Surrogate}/u.test(text)) {
    throw new ForkdError(`${JSON.stringify(text)} is not Unicode`, {
      hint: "a template has text only; put other bytes into a file, and copy it",
    });
  }
  return JSON.stringify(text).replaceAll("\x7f", "\\u007f");
}

function words(words: string | readonly string[]): string {
  return typeof words === "string" ? text(words) : `[${words.map(text).join(", ")}]`;
}

function whole(number: number): number {
  if (Number.isSafeInteger(number)) return number;
  throw new ForkdError(`${number} is no whole number`);
}
