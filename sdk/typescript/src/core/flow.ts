/** What takes several requests. */

import type * as models from "../generated/models.js";
import {
  FileNotFoundError,
  SandboxNotFoundError,
  SnapshotInUseError,
  SnapshotNotFoundError,
  SnapshotNotReadyError,
  TagTakenError,
} from "../generated/codes.js";
import type { Call } from "./call.js";
import { clock } from "./clock.js";
import { ForkdError, RequestTimeoutError } from "./failure.js";
import * as request from "./request.js";

/** What sends calls. */
export interface Sender {
  send<T>(call: Call<T>): Promise<T>;
}

const POLL_SECS = 0.1;

/** For a branch that is under way to come to its end. */
const SETTLE_SECS = 60;

/** A sandbox of the snapshot; of the image of that name, if there is no such snapshot. */
export async function create(
  sender: Sender,
  template: string,
  options: request.StartOptions,
): Promise<models.Sandbox> {
  const fork = request.fork(template, 1, options);
  let started: readonly models.Sandbox[];
  try {
    started = await sender.send(fork);
  } catch (error) {
    if (error instanceof SnapshotNotReadyError) {
      // Somebody else may be building it.
      await untilReady(sender, template, undefined);
    } else if (error instanceof SnapshotNotFoundError) {
      await templateOf(sender, template, error);
    } else {
      throw error;
    }
    started = await sender.send(fork);
  }
  const [sandbox] = started;
  if (sandbox === undefined) throw new ForkdError("the daemon started no sandbox and no error");
  return sandbox;
}

/** Builds a template under the image's name, or waits for whoever does. */
async function templateOf(
  sender: Sender,
  image: string,
  missing: SnapshotNotFoundError,
): Promise<void> {
  const names = (await sender.send(request.images())).map((each) => each.name);
  if (!names.includes(image)) {
    const known = [...names].sort().join(", ") || "none";
    throw new SnapshotNotFoundError(
      `there is no snapshot \`${image}\`, and no image of that name (images: ${known})`,
      {
        hint: "build a template first: client.snapshots.build(tag, { image })",
        status: missing.status,
        requestId: missing.requestId,
      },
    );
  }
  try {
    await sender.send(request.build(image, { image }));
  } catch (error) {
    if (!(error instanceof TagTakenError)) throw error;
    await untilReady(sender, image, undefined);
  }
}

/** Waits until the snapshot is ready. */
export async function untilReady(
  sender: Sender,
  tag: string,
  timeoutSecs: number | undefined,
): Promise<models.SnapshotInfo> {
  for (let waited = 0; ; waited += POLL_SECS) {
    const info = await sender.send(request.snapshotInfo(tag));
    if (info.status === "ready") return info;
    if (info.status === "failed") {
      const text = `snapshot \`${tag}\` failed: ${info.error ?? "no reason given"}`;
      throw new SnapshotNotReadyError(text, { hint: "take it again" });
    }
    if (timeoutSecs !== undefined && waited >= timeoutSecs) {
      throw new RequestTimeoutError(`snapshot \`${tag}\` is not ready after ${timeoutSecs} s`);
    }
    await clock.sleep(POLL_SECS);
  }
}

/** Waits until the operation has ended, however it did. */
export async function untilEnded(
  sender: Sender,
  id: string,
  timeoutSecs: number | undefined,
): Promise<models.Operation> {
  for (let left = timeoutSecs; ; ) {
    const step = Math.min(left ?? request.WAIT_SECS_MAX, request.WAIT_SECS_MAX);
    const operation = await sender.send(request.waitOperation(id, step));
    if (operation.state !== "running") return operation;
    if (left === undefined) continue;
    left -= step;
    if (left <= 0) {
      throw new RequestTimeoutError(`operation \`${id}\` runs after ${timeoutSecs} s`);
    }
  }
}

/** Removes a sandbox that may be gone already. */
export async function removeSandbox(sender: Sender, id: string): Promise<void> {
  try {
    await sender.send(request.removeSandbox(id));
  } catch (error) {
    if (!(error instanceof SandboxNotFoundError)) throw error;
  }
}

/**
 * Removes a snapshot that may not be there, or may be in the making, and all that depends on it.
 */
export async function removeAllOf(sender: Sender, tag: string): Promise<void> {
  for (let waited = 0; ; ) {
    try {
      return await sender.send(request.removeSnapshot(tag, { cascade: true }));
    } catch (error) {
      if (error instanceof SnapshotNotFoundError) return;
      const settles = error instanceof SnapshotNotReadyError || error instanceof SnapshotInUseError;
      if (!settles || waited >= SETTLE_SECS) throw error;
      const delay = error.retryAfterSecs || POLL_SECS;
      await clock.sleep(delay);
      waited += delay;
    }
  }
}

/** Whether there is such a file. */
export async function exists(sender: Sender, id: string, path: string): Promise<boolean> {
  try {
    await sender.send(request.statFile(id, path));
    return true;
  } catch (error) {
    if (error instanceof FileNotFoundError) return false;
    throw error;
  }
}
