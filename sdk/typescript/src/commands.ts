/** Commands in a sandbox: run and wait, or start and come back to. */

import type * as models from "./generated/models.js";
import { base64Of, bytesOf } from "./core/bytes.js";
import * as request from "./core/request.js";
import type { Command, ProgramOptions, TerminalSize } from "./core/request.js";
import { Collector, type CommandResult, type OutputChunk } from "./core/result.js";
import { OutputSource } from "./core/source.js";
import { Stream } from "./stream.js";
import type { Transport } from "./transport.js";

/** Is called with a piece of output; a promise that it gives is waited for. */
export type OutputCallback = (text: string) => unknown;

/** How long a command may run when nothing is said, in seconds. */
export const COMMAND_SECS = 60;

/** How the end of a command is waited for. */
export interface WaitOptions {
  /** Gets each piece of standard output when it comes. */
  onStdout?: OutputCallback | undefined;
  /** Gets each piece of standard error when it comes. */
  onStderr?: OutputCallback | undefined;
  /** Another exit code than 0 throws `CommandFailedError`. */
  check?: boolean | undefined;
}

/** How a command is run to its end. */
export interface RunOptions extends ProgramOptions, WaitOptions {
  /** What it gets as standard input. */
  stdin?: string | Uint8Array | undefined;
  /** When it is killed; null for never. 60 when nothing is said. */
  timeoutSecs?: number | null | undefined;
}

/** How a command is started. */
export interface CommandStartOptions extends ProgramOptions {
  /** Its standard input stays open for `sendStdin`. */
  stdin?: boolean | undefined;
  /** When it is killed; never when nothing is said. */
  timeoutSecs?: number | undefined;
  /** Gives it a terminal of this size. */
  tty?: TerminalSize | undefined;
  /**
   * Nothing of its output is dropped until it is read for the first time; it waits when there is
   * more than is kept.
   */
  holdOutput?: boolean | undefined;
}

/**
 * A command that was started in a sandbox and may still run.
 *
 * Iterate it for its output. Nothing is lost while it is read; of what nobody reads the last MiB
 * is kept.
 */
export class Process implements AsyncIterable<OutputChunk> {
  /** What was last heard of it. */
  info: models.Process;
  readonly #transport: Transport;
  readonly #sandboxId: string;

  /** @internal */
  constructor(transport: Transport, sandboxId: string, info: models.Process) {
    this.#transport = transport;
    this.#sandboxId = sandboxId;
    this.info = info;
  }

  /** Its name, `pr-` and hexadecimal digits. */
  get id(): string {
    return this.info.id;
  }

  /** Its process id in the sandbox. */
  get pid(): number {
    return this.info.pid;
  }

  /** Its output until it ends: all that is kept, or what comes from this offset on. */
  output(offset?: number): Stream<OutputChunk> {
    return new Stream(this.#transport, this.#source(offset));
  }

  [Symbol.asyncIterator](): AsyncIterator<OutputChunk> {
    return this.output();
  }

  /** Waits until it has ended; what it wrote, as far as it is kept, and how it ended. */
  async wait(options: WaitOptions = {}): Promise<CommandResult> {
    const source = this.#source(undefined);
    const collector = new Collector();
    for await (const chunk of new Stream(this.#transport, source)) {
      collector.add(chunk);
      await (chunk.stream === "stdout" ? options.onStdout : options.onStderr)?.(chunk.text);
    }
    const result = source.result(this.info.args, collector);
    return options.check || result.timedOut ? result.throwForExit() : result;
  }

  /** Asks how it is; also in `info`. */
  async refresh(): Promise<models.Process> {
    this.info = await this.#transport.send(request.process(this.#sandboxId, this.id));
    return this.info;
  }

  /** Writes to its standard input, and with `eof` closes it. */
  sendStdin(data: string | Uint8Array, options: { eof?: boolean } = {}): Promise<void> {
    const content = typeof data === "string" ? bytesOf(data) : data;
    return this.#transport.send(
      request.writeStdin(this.#sandboxId, this.id, content, options.eof ?? false),
    );
  }

  /** Closes its standard input. */
  closeStdin(): Promise<void> {
    return this.sendStdin("", { eof: true });
  }

  /** Sends it a signal, such as `"INT"` or 15. */
  sendSignal(signal: string | number): Promise<void> {
    return this.#transport.send(request.signalProcess(this.#sandboxId, this.id, signal));
  }

  /** Ends it at once. What it wrote can still be read. */
  kill(): Promise<void> {
    return this.sendSignal("KILL");
  }

  /** Tells it the size of its terminal. */
  resize(size: TerminalSize): Promise<void> {
    return this.#transport.send(request.resizeProcess(this.#sandboxId, this.id, size));
  }

  /** Kills it if it runs, and forgets it. */
  remove(): Promise<void> {
    return this.#transport.send(request.removeProcess(this.#sandboxId, this.id));
  }

  #source(offset: number | undefined): OutputSource {
    return new OutputSource(this.#sandboxId, this.id, offset);
  }
}

/** Runs programs in a sandbox. */
export class Commands {
  readonly #transport: Transport;
  readonly #id: string;

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    this.#transport = transport;
    this.#id = sandboxId;
  }

  /**
   * Runs a command to its end. Text is run by `/bin/sh`; a list is program and arguments, with no
   * shell.
   *
   * When its time is over it is killed, and `CommandTimeoutError` is thrown, whose `result` has the
   * output until then.
   */
  async run(command: Command, options: RunOptions = {}): Promise<CommandResult> {
    const { env, cwd, user, stdin } = options;
    const timeout = options.timeoutSecs === undefined ? COMMAND_SECS : options.timeoutSecs;
    if (options.onStdout === undefined && options.onStderr === undefined) {
      const input =
        typeof stdin === "string" ? { stdin } : { stdinBase64: stdin && base64Of(stdin) };
      const call = request.execCommand(this.#id, command, { env, cwd, user, ...input }, timeout);
      const result = await this.#transport.send(call);
      return options.check || result.timedOut ? result.throwForExit() : result;
    }
    const process = await this.start(command, {
      env,
      cwd,
      user,
      stdin: stdin !== undefined,
      timeoutSecs: timeout ?? undefined,
      holdOutput: true,
    });
    try {
      if (stdin !== undefined) await process.sendStdin(stdin, { eof: true });
      return await process.wait(options);
    } finally {
      await process.remove();
    }
  }

  /**
   * Starts a command and does not wait for it.
   *
   * A child of a branch goes on with the program, but not with this object: the output that the
   * program makes there goes nowhere.
   */
  async start(command: Command, options: CommandStartOptions = {}): Promise<Process> {
    const info = await this.#transport.send(request.startProcess(this.#id, command, options));
    return new Process(this.#transport, this.#id, info);
  }

  /** Those that were started in this sandbox and are not forgotten. */
  async list(): Promise<Process[]> {
    const found = await this.#transport.send(request.processes(this.#id));
    return found.map((info) => new Process(this.#transport, this.#id, info));
  }

  /** One that was started earlier, perhaps by another program. */
  async connect(processId: string): Promise<Process> {
    const info = await this.#transport.send(request.process(this.#id, processId));
    return new Process(this.#transport, this.#id, info);
  }
}
