/**
 * All errors of this package. `ForkdError` is the root.
 *
 * The daemon's errors are `ApiError`, with one class for each code of its catalogue.
 */

export * from "./generated/codes.js";
export * from "./core/failure.js";
export {
  CodeError,
  CodeTimeoutError,
  CommandFailedError,
  CommandTimeoutError,
} from "./core/result.js";
