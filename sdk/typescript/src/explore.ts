/** `explore`: a search that branches sandboxes. */

import "./core/dispose.js";
import { randomBytes } from "node:crypto";

import { ApiError, ForkdError } from "./core/failure.js";
import * as flow from "./core/flow.js";
import type { Mode } from "./core/request.js";
import { CodeError, CommandFailedError } from "./core/result.js";
import type { Branch, Child, Sandbox } from "./sandbox.js";

/** What is tried in a child: Python code that it runs, or a function that gets it. */
export type Variant = string | ((sandbox: Sandbox) => unknown);

/** The variants of every state, or a function from a state to its own. */
export type Variants =
  | readonly Variant[]
  | ((node: Node) => readonly Variant[] | Promise<readonly Variant[]>);

/** How good a child is: more is better, null a dead end. A Python expression or a function. */
export type Score =
  | string
  | ((sandbox: Sandbox) => number | null | undefined | Promise<number | null | undefined>);

/** A state of the search. */
export interface Node {
  /** The sandbox that is in this state. */
  readonly sandbox: Sandbox;
  /** How many variants led here. */
  readonly depth: number;
  /** The variants that led here. */
  readonly path: readonly Variant[];
  /** How good it is. */
  readonly score: number;
  /** What the last variant gave: the function's value, or the code's result. */
  readonly value: unknown;
}

/** A variant that did not work out. */
export interface Failure {
  /** The variants that led there, itself last. */
  readonly path: readonly Variant[];
  readonly error: ForkdError;
}

/** How to search. */
export interface ExploreOptions {
  /** How many states are kept of each level; 1 when nothing is said. */
  keep?: number;
  /** How many levels; 1 when nothing is said. */
  depth?: number;
  /** Stop at a score of at least this. */
  enough?: number;
  /** How branches are taken. */
  mode?: Mode;
  /** How many children work at a time; 8 when nothing is said. */
  parallel?: number;
  /** Ends the search when it is aborted; nothing is left then. */
  signal?: AbortSignal;
}

/** What a search found. With `await using` all that is left of it is removed at the end. */
export class Exploration implements AsyncDisposable {
  /** The states that were kept last, best first. Their sandboxes run. */
  nodes: readonly Node[] = [];
  /** The variants that did not work out. */
  readonly failures: Failure[] = [];
  /** How many variants were tried. */
  tried = 0;
  readonly #source: Sandbox;
  /** Tags of all snapshots that were taken, or were about to be. */
  readonly #tags: string[] = [];
  readonly #underWay = new Set<Promise<unknown>>();

  /** @internal */
  constructor(source: Sandbox) {
    this.#source = source;
  }

  /** The best of them; undefined if every variant was a dead end. */
  get best(): Node | undefined {
    return this.nodes[0];
  }

  /** @internal A branch of a state; its tag is known before it is taken, so that it can go. */
  async branch(node: Node, n: number, mode: Mode | undefined): Promise<Branch> {
    const tag = `explore-${randomBytes(8).toString("hex")}`;
    this.#tags.push(tag);
    const branch = node.sandbox.branch({ n, mode, tag });
    this.#underWay.add(branch);
    try {
      return await branch;
    } finally {
      this.#underWay.delete(branch);
    }
  }

  /** Removes all sandboxes and snapshots of the search. */
  async close(): Promise<void> {
    // A request that is under way may be carried out after its snapshot was looked for.
    await Promise.allSettled(this.#underWay);
    for (let tag = this.#tags[0]; tag !== undefined; tag = this.#tags[0]) {
      await flow.removeAllOf(this.#source.transport, tag);
      this.#tags.shift();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/**
 * Tries variants in children of a sandbox, keeps the best `keep`, and goes on from these.
 *
 * A variant that throws a `CodeError`, `CommandFailedError` or `ApiError` is a dead end; other
 * errors end the search. It ends after `depth` levels, or when a score is `enough`.
 *
 * The sandbox itself is not changed. What is not kept is removed at once, what is kept with the
 * result; after an error or an abort nothing is left.
 */
export async function explore(
  sandbox: Sandbox,
  variants: Variants,
  score: Score,
  options: ExploreOptions = {},
): Promise<Exploration> {
  const search = new Search(sandbox, variants, score, options);
  options.signal?.throwIfAborted();
  const ends = search.run();
  try {
    await Promise.race([ends, aborted(options.signal, ends)]);
  } catch (error) {
    // What works in a child still may never end; it has no sandbox any more then.
    search.stop();
    await search.found.close();
    throw error;
  }
  return search.found;
}

/** Throws when the signal is aborted; ends with the search. */
function aborted(signal: AbortSignal | undefined, ends: Promise<void>): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = (): void => reject(signal?.reason);
    signal?.addEventListener("abort", stop, { once: true });
    const done = (): void => {
      signal?.removeEventListener("abort", stop);
      resolve();
    };
    ends.then(done, done);
  });
}

/** Nothing more was begun. */
class Stopped extends Error {}

interface Trial {
  readonly parent: Node;
  readonly child: Child;
  readonly choice: Variant;
}

class Search {
  readonly found: Exploration;
  readonly #source: Sandbox;
  readonly #variants: Variants;
  readonly #score: Score;
  readonly #keep: number;
  readonly #depth: number;
  readonly #enough: number;
  readonly #mode: Mode | undefined;
  readonly #limiter: Limiter;
  #stopped = false;

  constructor(source: Sandbox, variants: Variants, score: Score, options: ExploreOptions) {
    this.found = new Exploration(source);
    this.#source = source;
    this.#variants = variants;
    this.#score = score;
    this.#keep = options.keep ?? 1;
    this.#depth = options.depth ?? 1;
    this.#enough = options.enough ?? Infinity;
    this.#mode = options.mode;
    this.#limiter = new Limiter(Math.max(1, options.parallel ?? 8));
    if (!(this.#keep >= 1 && this.#depth >= 1)) {
      throw new RangeError("`keep` and `depth` must be at least 1");
    }
  }

  /** Nothing more is begun. */
  stop(): void {
    this.#stopped = true;
  }

  async run(): Promise<void> {
    let frontier: readonly Node[] = [
      { sandbox: this.#source, depth: 0, path: [], score: -Infinity, value: undefined },
    ];
    for (let level = 0; level < this.#depth; level += 1) {
      const kept = await this.#level(frontier);
      if (kept.length === 0) return;
      await this.#remove(frontier.filter((node) => node.depth > 0).map((node) => node.sandbox));
      this.found.nodes = frontier = kept;
      if ((kept[0]?.score ?? -Infinity) >= this.#enough) return;
    }
  }

  /** Tries every variant of every state, and removes what is not kept. */
  async #level(frontier: readonly Node[]): Promise<Node[]> {
    const wanted: [Node, readonly Variant[]][] = [];
    for (const node of frontier) {
      const variants = this.#variants;
      wanted.push([node, typeof variants === "function" ? await variants(node) : variants]);
    }
    const taken = wanted.filter(([, choices]) => choices.length > 0);
    const trials = await this.#each(taken, async ([parent, choices]): Promise<Trial[]> => {
      const branch = await this.found.branch(parent, choices.length, this.#mode);
      return branch.children.flatMap((child, index) => {
        const choice = choices[index];
        return choice === undefined ? [] : { parent, child, choice };
      });
    });
    const all = trials.flat();
    this.found.tried += all.length;
    const grown = await this.#each(all, (trial) => this.#try(trial), this.#limiter);
    const best = grown.flatMap((node) => node ?? []).sort((a, b) => b.score - a.score);
    const kept = best.slice(0, this.#keep);
    const alive = new Set(kept.map((node) => node.sandbox));
    const children = all.flatMap((trial) => trial.child.sandbox ?? []);
    await this.#remove(children.filter((child) => !alive.has(child)));
    return kept;
  }

  /** What a variant gives in a child; undefined for a dead end. */
  async #try({ parent, child, choice }: Trial): Promise<Node | undefined> {
    const path = [...parent.path, choice];
    try {
      const sandbox = child.unwrap();
      const value =
        typeof choice === "string"
          ? (await sandbox.runCode(choice)).throwForError().text
          : await choice(sandbox);
      const score = await this.#scoreOf(sandbox);
      if (score == null || Number.isNaN(score)) return undefined;
      return { sandbox, depth: parent.depth + 1, path, score, value };
    } catch (error) {
      const isDeadEnd =
        error instanceof ApiError ||
        error instanceof CodeError ||
        error instanceof CommandFailedError;
      if (!isDeadEnd) throw error;
      this.found.failures.push({ path, error });
      return undefined;
    }
  }

  async #scoreOf(sandbox: Sandbox): Promise<number | null | undefined> {
    if (typeof this.#score !== "string") return await this.#score(sandbox);
    const execution = (await sandbox.runCode(this.#score)).throwForError();
    const { result } = execution;
    if (result === undefined || result === "nan") return undefined;
    const score = numberOf(result);
    if (score === undefined) {
      throw new CodeError(`the score is no number but ${result.slice(0, 80)}`, execution);
    }
    return score;
  }

  async #remove(sandboxes: readonly Sandbox[]): Promise<void> {
    await this.#each(sandboxes, (sandbox) => sandbox.remove(), this.#limiter);
  }

  /**
   * Does the work for all items at the same time. The first error is thrown once all have come to
   * their end.
   */
  async #each<T, R>(
    items: readonly T[],
    work: (item: T) => Promise<R>,
    limiter = new Limiter(Infinity),
  ): Promise<R[]> {
    let first: { error: unknown } | undefined;
    const one = async (item: T): Promise<R> => {
      if (this.#stopped || first !== undefined) throw new Stopped();
      try {
        return await work(item);
      } catch (error) {
        first ??= { error };
        throw error;
      }
    };
    const ended = await Promise.allSettled(items.map((item) => limiter.run(() => one(item))));
    if (first !== undefined) throw first.error;
    return ended.map((each) => {
      if (each.status === "rejected") throw each.reason;
      return each.value;
    });
  }
}

/** What Python prints for a number; undefined for anything else. */
function numberOf(text: string): number | undefined {
  if (text === "inf") return Infinity;
  if (text === "-inf") return -Infinity;
  const number = Number(text);
  return text.trim() === "" || Number.isNaN(number) ? undefined : number;
}

/** So many at a time. */
class Limiter {
  #free: number;
  readonly #waiting: (() => void)[] = [];

  constructor(free: number) {
    this.#free = free;
  }

  async run<R>(work: () => Promise<R>): Promise<R> {
    if (this.#free > 0) this.#free -= 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    try {
      return await work();
    } finally {
      const next = this.#waiting.shift();
      if (next === undefined) this.#free += 1;
      else next();
    }
  }
}
