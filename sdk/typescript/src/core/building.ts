/**
 * `forkd build` as a program: what it is called with, and what its lines mean. Pure.
 *
 * The command line plans builds, and does so for everybody: that is why a step that one of them has
 * done is there for all.
 */

import { errorOfBody } from "./call.js";
import { members, needed, number, object, perhaps, text } from "./decode.js";
import {
  BuildFailedError,
  ForkdError,
  NotUnderstoodError,
  ProgramMissingError,
  UnreachableError,
} from "./failure.js";
import type { Target } from "./target.js";

/** How far a step is: `cached` if it was not necessary to run it. */
export type StepStatus = "running" | "cached" | "done";

/** Names the program in place of the one in `PATH`. */
const PROGRAM_VARIABLE = "FORKD_BIN";

const EXIT_UNREACHABLE = 3;

/** Of what the program says beside its events, if it ends without the last one. */
const SAID_CHARS = 2000;

/** A step of a build. */
export interface BuildStep {
  /** Counted from 1. */
  readonly number: number;
  /** How many steps there are. */
  readonly of: number;
  /** The step in one line. */
  readonly step: string;
  /** `running`, `done`, or `cached` if it was not necessary to run it. */
  readonly status: StepStatus | (string & {});
  /** How long it took, until it is a snapshot; 0 before that. */
  readonly ms: number;
  /** The snapshot after it; undefined for a step that has none. */
  readonly snapshotTag?: string | undefined;
}

/** The end of a build that has succeeded. */
interface Built {
  readonly tag: string;
  readonly ms: number;
}

/** The end of a build that has failed. */
interface Failed {
  readonly message: string;
  readonly hint: string | undefined;
  readonly code: string | undefined;
  readonly number: number | undefined;
  readonly step: string | undefined;
  readonly exitCode: number | undefined;
  readonly output: string | undefined;
  readonly sandboxId: string | undefined;
}

const readStep = object<BuildStep>("BuildStep", {
  number: needed("number", number),
  of: needed("of", number),
  step: needed("step", text),
  status: needed("status", text),
  ms: needed("ms", number),
  snapshotTag: perhaps("snapshot_tag", text),
});

const readBuilt = object<Built>("Built", { tag: needed("tag", text), ms: needed("ms", number) });

const readFailed = object<Failed>("Failed", {
  message: needed("message", text),
  hint: perhaps("hint", text),
  code: perhaps("code", text),
  number: perhaps("number", number),
  step: perhaps("step", text),
  exitCode: perhaps("exit_code", number),
  output: perhaps("output", text),
  sandboxId: perhaps("sandbox_id", text),
});

type Environment = Readonly<Record<string, string | undefined>>;

/** The program that builds. */
export function programOf(named: string | undefined, environment: Environment): string {
  return named || environment[PROGRAM_VARIABLE] || "forkd";
}

/** How a template is built. */
export interface BuildArguments {
  /** The directory that files are copied from; by default the current one. */
  context?: string | undefined;
  /** Begins with this snapshot or image of forkd in place of the template's own. */
  fromSnapshot?: string | undefined;
  /** Runs all steps. */
  noCache?: boolean | undefined;
  /** Leaves the sandbox of a step that fails. */
  keep?: boolean | undefined;
}

/** What the program is called with. The recipe comes on standard input. */
export function argumentsOf(tag: string | undefined, options: BuildArguments): string[] {
  const found = ["build", "--events", "--file=-"];
  if (tag !== undefined) found.push(`--tag=${tag}`);
  if (options.fromSnapshot !== undefined) found.push(`--from=${options.fromSnapshot}`);
  if (options.noCache) found.push("--no-cache");
  if (options.keep) found.push("--keep");
  return [...found, "--", options.context ?? "."];
}

/**
 * Our own variables, with those that lead to the daemon. Others can read arguments, but not these:
 * a token is among them.
 */
export function environmentOf(
  own: Environment,
  target: Target,
  token: string | undefined,
  caCert: string | undefined,
): Record<string, string | undefined> {
  return {
    ...own,
    FORKD_URL: "url" in target ? target.url : undefined,
    FORKD_SOCKET: "socket" in target ? target.socket : undefined,
    FORKD_TOKEN: token || undefined,
    FORKD_CA_CERT: caCert || undefined,
  };
}

/** Reads the events of a build, and knows in the end what became of it. */
export class Watch {
  /** Those that are over. */
  readonly steps: BuildStep[] = [];
  #built: Built | undefined;
  #failed: Failed | undefined;

  /** Reads a line; gives the step that it tells of, if it tells of one. */
  take(line: string): BuildStep | undefined {
    const event = parsed(line);
    if (event.event === "built") this.#built = readBuilt(event, "Built");
    if (event.event === "failed") this.#failed = readFailed(event, "Failed");
    if (event.event !== "step") return undefined;
    const step = readStep(event, "BuildStep");
    if (step.status !== "running") this.steps.push(step);
    return step;
  }

  /** What was built, or why it was not. `said` is what the program wrote for people. */
  end(exit: number | string, said: string): Built {
    if (this.#failed !== undefined) throw errorOf(this.#failed, exit);
    if (this.#built === undefined || exit !== 0) {
      const end = said.slice(-SAID_CHARS).trim();
      throw new BuildFailedError(`\`forkd build\` ended with ${exit}: ${end}`, {
        hint: "is the program `forkd` as new as this SDK?",
      });
    }
    return this.#built;
  }
}

/** The program was not started. */
export function missing(program: string, cause: unknown): ProgramMissingError {
  const why = cause instanceof Error ? cause.message : String(cause);
  const message = `builds need the program \`${program}\`, which cannot be started: ${why}`;
  const hint =
    "install forkd on this machine, too, as its README says; or name the program with" +
    ` \`program\` or ${PROGRAM_VARIABLE}`;
  return new ProgramMissingError(message, { hint, cause });
}

function parsed(line: string): Record<string, unknown> {
  try {
    return members(JSON.parse(line), "event");
  } catch (cause) {
    const shown = JSON.stringify(line.slice(0, 200));
    throw new NotUnderstoodError(`\`forkd build\` wrote ${shown}, which is no event`, {
      hint: "is that the program `forkd`, and as new as this SDK?",
      cause,
    });
  }
}

function errorOf(failed: Failed, exit: number | string): ForkdError {
  const { message, hint = "", code, ...more } = failed;
  if (more.step !== undefined) {
    const said = `step ${more.number}, \`${more.step}\`: ${message}`;
    return new BuildFailedError(said, { ...more, hint });
  }
  if (code !== undefined) return errorOfBody({ error: message, code, hint });
  const kind = exit === EXIT_UNREACHABLE ? UnreachableError : BuildFailedError;
  return new kind(message, { hint });
}
