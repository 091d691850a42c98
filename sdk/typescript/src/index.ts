/**
 * Sandboxes that can be branched while they run.
 *
 * ```ts
 * import { Sandbox } from "forkd-sdk";
 *
 * await using sandbox = await Sandbox.create("python");
 * await sandbox.runCode("state = list(range(1000))");
 * await using branch = await sandbox.branch({ n: 3 });
 * for (const child of branch.unwrap()) {
 *   console.log((await child.runCode("sum(state)")).result);
 * }
 * ```
 */

export {
  Client,
  Keys,
  Networks,
  Operations,
  Sandboxes,
  Secrets,
  Snapshots,
  type ClientOptions,
} from "./client.js";
export {
  Commands,
  Process,
  type CommandStartOptions,
  type OutputCallback,
  type RunOptions,
  type WaitOptions,
} from "./commands.js";
export type { BuildStep, StepStatus } from "./core/building.js";
export type { Content } from "./core/call.js";
export {
  ApiError,
  BuildFailedError,
  ForkdError,
} from "./core/failure.js";
export {
  command,
  port,
  Ready,
  type CopyOptions,
  type ImageOptions,
  type ReadyOptions,
} from "./core/recipe.js";
export type {
  BranchOptions,
  BuildOptions,
  Command,
  EventFilter,
  ImportOptions,
  Mode,
  NetworkOptions,
  RemoveOptions,
  StartOptions,
  TerminalSize,
} from "./core/request.js";
export {
  CodeError,
  CodeTimeoutError,
  CommandFailedError,
  CommandResult,
  CommandTimeoutError,
  Display,
  Execution,
  OutputChunk,
  Part,
  Value,
  type Event,
  type FileChange,
} from "./core/result.js";
export {
  explore,
  Exploration,
  type ExploreOptions,
  type Failure,
  type Node,
  type Score,
  type Variant,
  type Variants,
} from "./explore.js";
export { Files } from "./files.js";
export type * as models from "./generated/models.js";
export { Forward, Ports, type ForwardOptions } from "./ports.js";
export { Branch, Child, Sandbox, Snapshot } from "./sandbox.js";
export { ByteStream, Stream } from "./stream.js";
export { Build, Template, type TemplateBuildOptions } from "./template.js";
export type { Fetch, FetchAnswer, FetchInit } from "./wire.js";
