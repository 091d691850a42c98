/** Where the daemon is. Pure: what the environment says comes in as a value. */

import { isAbsolute, join, resolve } from "node:path";

import { ForkdError } from "./failure.js";

/** Where a daemon listens. */
export type Target = { readonly url: string } | { readonly socket: string };

/** A target from `http://host:port`, `https://...` or `unix:/path`. */
export function parse(text: string): Target {
  if (/^https?:\/\//.test(text)) return { url: text.replace(/\/+$/, "") };
  if (text.startsWith("unix:")) {
    const path = text.slice("unix:".length).replace(/^\/\/(?=\/)/, "");
    if (path.startsWith("/")) return { socket: path };
  }
  throw new ForkdError(`\`${text}\` is no address of a daemon`, {
    hint: "write it as http://127.0.0.1:8889 or unix:/run/forkd/forkd.sock",
  });
}

/** What the paths of routes are appended to. */
export function baseUrl(target: Target): string {
  // The host is not used to connect to a socket; HTTP demands one.
  return "url" in target ? target.url : "http://localhost";
}

/** For people. */
export function shown(target: Target): string {
  return "url" in target ? target.url : target.socket;
}

/**
 * The daemon that the command line would use, too: `FORKD_URL`, else `FORKD_SOCKET`, else the
 * socket in `FORKD_HOME` or in the user's default directory.
 */
export function ofEnvironment(
  environment: Readonly<Record<string, string | undefined>>,
  uid: number,
): Target {
  if (environment.FORKD_URL) return parse(environment.FORKD_URL);
  if (environment.FORKD_SOCKET) return { socket: environment.FORKD_SOCKET };
  const home = environment.FORKD_HOME;
  if (home) return { socket: join(resolve(home), "run", "forkd.sock") };
  return { socket: join(runDirectory(environment.XDG_RUNTIME_DIR ?? "", uid), "forkd.sock") };
}

function runDirectory(runtime: string, uid: number): string {
  if (uid === 0) return "/run/forkd";
  // The daemon refuses one that is somebody else's.
  return isAbsolute(runtime) ? join(runtime, "forkd") : `/tmp/forkd-${uid}`;
}
