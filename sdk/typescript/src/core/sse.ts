/** Server-sent events, cut out of bytes as they come. No I/O. */

import { NotUnderstoodError } from "./failure.js";

/** One event. A sign of life may come as one without data. */
export interface SentEvent {
  readonly name: string;
  readonly data: string;
  /** The last id that was sent. */
  readonly id: string;
}

/** No event of the daemon is nearly as long; what is longer is no event. */
const EVENT_CHARS_MAX = 16 * 1024 * 1024;

/** Cuts bytes into lines, which end in any of the usual ways. */
export class LineCutter {
  readonly #decoder = new TextDecoder("utf-8");
  #rest = "";

  /** The lines that are complete now. */
  push(bytes: Uint8Array): string[] {
    this.#rest += this.#decoder.decode(bytes, { stream: true });
    // A carriage return at the end may be half of a line's end.
    const end = this.#rest.endsWith("\r") ? this.#rest.length - 1 : this.#rest.length;
    const lines = this.#rest.slice(0, end).split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? "") + this.#rest.slice(end);
    if (this.#rest.length > EVENT_CHARS_MAX) {
      throw new NotUnderstoodError("the answer is no stream: a line does not end");
    }
    return lines;
  }
}

/** Cuts bytes into events. */
export class EventCutter {
  readonly #lines = new LineCutter();
  #name = "";
  #data: string[] = [];
  #id = "";
  #anything = false;

  /** The events that are complete now. */
  push(bytes: Uint8Array): SentEvent[] {
    const found: SentEvent[] = [];
    for (const line of this.#lines.push(bytes)) {
      if (line !== "") {
        this.#field(line);
      } else if (this.#anything) {
        found.push({ name: this.#name, data: this.#data.join("\n"), id: this.#id });
        this.#name = "";
        this.#data = [];
        this.#anything = false;
      }
    }
    return found;
  }

  #field(line: string): void {
    const colon = line.indexOf(":");
    const name = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.#name = value;
    else if (name === "data") this.#data.push(value);
    else if (name === "id") this.#id = value;
    else return;
    this.#anything = true;
  }
}
