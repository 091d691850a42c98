/** Templates that are built from steps. */

import type { Client } from "./client.js";
import {
  argumentsOf,
  environmentOf,
  programOf,
  Watch,
  type BuildArguments,
  type BuildStep,
} from "./core/building.js";
import { Recipe, type CopyOptions, type ImageOptions, type Ready } from "./core/recipe.js";
import * as request from "./core/request.js";
import type { Command } from "./core/request.js";
import { transport as transportOfEnvironment } from "./environment.js";
import { follow } from "./program.js";
import { Snapshot } from "./sandbox.js";

/** How a template is built, and who is told. */
export interface TemplateBuildOptions extends BuildArguments {
  /** Called when a step begins and when it is over. */
  onStep?: ((step: BuildStep) => unknown) | undefined;
  /** The program that builds; else the one that `FORKD_BIN` names, else `forkd`. */
  program?: string | undefined;
  /** Ends the build in order. It leaves no sandbox. */
  signal?: AbortSignal | undefined;
  client?: Client | undefined;
}

/** What a build made. */
export class Build {
  /** What sandboxes are started from. */
  readonly snapshot: Snapshot;
  /** All steps, in order. */
  readonly steps: readonly BuildStep[];
  /** How long it took. */
  readonly ms: number;

  /** @internal */
  constructor(snapshot: Snapshot, steps: readonly BuildStep[], ms: number) {
    this.snapshot = snapshot;
    this.steps = steps;
    this.ms = ms;
  }

  /** The tag of the snapshot. */
  get tag(): string {
    return this.snapshot.tag;
  }
}

/**
 * A template as steps, in the words of `forkd.toml`: begin with `fromSnapshot` or `fromImage`, and
 * end with `build`.
 *
 * Each step gives a new template and leaves this one as it is, so that several may begin alike.
 */
export class Template {
  readonly #recipe: Recipe;

  private constructor(recipe: Recipe) {
    this.#recipe = recipe;
  }

  /** Begins with a snapshot; or with an image of forkd, of which a template is made. */
  static fromSnapshot(name: string): Template {
    return new Template(Recipe.fromSnapshot(name));
  }

  /** Begins with an OCI image, such as `python:3.12-slim`. For admins. */
  static fromImage(reference: string, options: ImageOptions = {}): Template {
    return new Template(Recipe.fromImage(reference, options));
  }

  /**
   * Runs a command to its end. Any exit code but 0 ends the build.
   *
   * `/bin/sh` runs a string. A list is a program and its arguments.
   */
  run(command: Command): Template {
    return new Template(this.#recipe.run(command));
  }

  /**
   * Copies files and directories of the context, as `COPY` of a Dockerfile does. Of a directory,
   * what is in it goes.
   */
  copy(sources: string | readonly string[], to: string, options: CopyOptions = {}): Template {
    return new Template(this.#recipe.copy(sources, to, options));
  }

  /** Sets variables of the steps that follow. */
  env(variables: Readonly<Record<string, string>>): Template {
    return new Template(this.#recipe.env(variables));
  }

  /** Sets the directory of the steps that follow. */
  workdir(path: string): Template {
    return new Template(this.#recipe.workdir(path));
  }

  /** Sets the user of the steps that follow. */
  user(name: string): Template {
    return new Template(this.#recipe.user(name));
  }

  /**
   * Starts a process that runs on, in every sandbox of the template.
   *
   * With `ready`, which is `port(8000)` or `command("...")`, the step is done when the process is
   * ready.
   */
  start(command: Command, options: { ready?: Ready | undefined } = {}): Template {
    return new Template(this.#recipe.start(command, options.ready));
  }

  /** The text of a `forkd.toml` with the same steps. */
  get recipe(): string {
    return String(this.#recipe);
  }

  /**
   * Builds it: runs the steps that no earlier build has run, and freezes the result as `tag`.
   *
   * The command line does that: it must be on this machine. Throws `BuildFailedError` if a step
   * fails, and `ProgramMissingError` without that program.
   */
  async build(tag?: string, options: TemplateBuildOptions = {}): Promise<Build> {
    const transport = options.client?.transport ?? transportOfEnvironment();
    const { target, token, caCert } = transport.way;
    const watch = new Watch();
    const program = programOf(options.program, process.env);
    const { exit, said } = await follow(program, argumentsOf(tag, options), {
      environment: environmentOf(process.env, target, token, caCert),
      text: this.recipe,
      signal: options.signal,
      onLine: async (line) => {
        const step = watch.take(line);
        if (step !== undefined) await options.onStep?.(step);
      },
    });
    const built = watch.end(exit, said);
    const info = await transport.send(request.snapshotInfo(built.tag));
    return new Build(new Snapshot(transport, info), watch.steps, built.ms);
  }
}
