/** Runs a program to its end and reads its lines. */

import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import type { Readable } from "node:stream";

import { missing } from "./core/building.js";

/** For a program that was asked to end. */
const STOP_SECS = 60;

/** What a program is given, and who hears of it. */
export interface FollowOptions {
  readonly environment: NodeJS.ProcessEnv;
  /** For its standard input. */
  readonly text: string;
  /** Gets its lines. */
  readonly onLine: (line: string) => Promise<void>;
  readonly signal: AbortSignal | undefined;
}

/** How a program ended: its exit code or the name of a signal, and its standard error. */
export interface Ended {
  readonly exit: number | string;
  readonly said: string;
}

/**
 * Gives the program its text, and `onLine` its lines.
 *
 * Guarantees: whatever ends this, the program has ended; it is asked to first, so that it can end
 * in order. Not by an interrupt, which is ignored below a shell that runs us in the background.
 */
export async function follow(
  program: string,
  words: readonly string[],
  options: FollowOptions,
): Promise<Ended> {
  options.signal?.throwIfAborted();
  const child = spawn(program, words, { env: options.environment, stdio: "pipe" });
  try {
    await once(child, "spawn");
  } catch (error) {
    throw missing(program, error);
  }
  // It may end before it has read everything, and says why.
  child.stdin.on("error", () => {}).end(options.text);
  let said = "";
  child.stderr.setEncoding("utf8").on("data", (piece: string) => (said += piece));
  const closed = once(child, "close");
  const stop = (): void => end(child);
  options.signal?.addEventListener("abort", stop, { once: true });
  // While it was started nobody listened.
  if (options.signal?.aborted) stop();
  try {
    for await (const line of lines(child.stdout)) await options.onLine(line);
  } catch (error) {
    stop();
    throw error;
  } finally {
    await closed;
    options.signal?.removeEventListener("abort", stop);
  }
  options.signal?.throwIfAborted();
  return { exit: child.exitCode ?? child.signalCode ?? "nothing", said };
}

async function* lines(output: Readable): AsyncGenerator<string> {
  let parts: string[] = [];
  for await (const chunk of output.setEncoding("utf8")) {
    const [head = "", ...more] = String(chunk).split("\n");
    parts.push(head);
    for (const piece of more) {
      yield parts.join("");
      parts = [piece];
    }
  }
}

function end(child: ChildProcess): void {
  child.kill("SIGTERM");
  const timer = setTimeout(() => child.kill("SIGKILL"), 1000 * STOP_SECS);
  child.once("close", () => clearTimeout(timer));
}
