/** The daemon that the environment names, and the connection to it. */

import { ofEnvironment, shown, type Target } from "./core/target.js";
import { Transport } from "./transport.js";

/** How often a request is repeated that is refused because too many wait. */
export const RETRIES = 2;

/** Where the command line would look for the daemon. */
export function target(): Target {
  return ofEnvironment(process.env, process.geteuid?.() ?? 0);
}

/** What the environment says about tokens and certificates. */
export function credentials(): { token: string | undefined; caCert: string | undefined } {
  return {
    token: process.env.FORKD_TOKEN || undefined,
    caCert: process.env.FORKD_CA_CERT || undefined,
  };
}

const known = new Map<string, Transport>();

/** A connection that nobody has to close: unused connections do not keep the program alive. */
export function transport(): Transport {
  const found = target();
  const { token, caCert } = credentials();
  const name = JSON.stringify([shown(found), token, caCert]);
  let own = known.get(name);
  if (own === undefined) {
    own = new Transport(found, { token, caCert, maxRetries: RETRIES });
    known.set(name, own);
  }
  return own;
}
