/// <reference lib="esnext.disposable" preserve="true" />
/** `Symbol.asyncDispose`, which `await using` asks for, for a Node that does not have it yet. */

if (Symbol.asyncDispose === undefined) {
  Object.defineProperty(Symbol, "asyncDispose", { value: Symbol.for("nodejs.asyncDispose") });
}

export {};
