/** Where things are. */

import { resolve } from "node:path";
import { fileURLToPath } from "node:url";

/** The root of the repository, seen from `dist/tests`. */
export const ROOT = resolve(fileURLToPath(import.meta.url), "../../../../..");
