/** The files of a sandbox. */

import type * as models from "./generated/models.js";
import { bytesOf, exactTextOf } from "./core/bytes.js";
import type { Content } from "./core/call.js";
import { ForkdError } from "./core/failure.js";
import * as flow from "./core/flow.js";
import * as request from "./core/request.js";
import type { FileChange } from "./core/result.js";
import { WatchSource } from "./core/source.js";
import { ByteStream, Stream } from "./stream.js";
import type { Transport } from "./transport.js";

/** Reads and writes files of a sandbox. All paths are absolute ones in the sandbox. */
export class Files {
  readonly #transport: Transport;
  readonly #id: string;

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    this.#transport = transport;
    this.#id = sandboxId;
  }

  /**
   * The content of a file of at most 64 MiB, as UTF-8 text or as bytes. Throws `FileNotFoundError` if there is none.
   */
  read(path: string, options?: { format?: "text" }): Promise<string>;
  read(path: string, options: { format: "bytes" }): Promise<Uint8Array>;
  async read(
    path: string,
    options: { format?: "text" | "bytes" } = {},
  ): Promise<string | Uint8Array> {
    const content = await this.#transport.send(request.readFile(this.#id, path));
    if (options.format === "bytes") return content;
    const text = exactTextOf(content);
    if (text === undefined) {
      throw new ForkdError(`\`${path}\` is no UTF-8 text`, {
        hint: 'read it as bytes: read(path, { format: "bytes" })',
      });
    }
    return text;
  }

  /** The content of a file piece by piece, for large ones: at most 16 GiB. */
  stream(path: string): Promise<ByteStream> {
    return ByteStream.open(this.#transport, request.streamFile(this.#id, path));
  }

  /**
   * Writes a file: all of it or nothing. Missing directories above it are made.
   *
   * `data` is text, bytes, or pieces of bytes such as a Node or web stream gives; `mode` are
   * permission bits such as `0o755`. The file belongs to `user`, as `USER` or `USER:GROUP`: names
   * of the guest or numbers. Without it a new file belongs to root.
   */
  async write(
    path: string,
    data: string | Content,
    options: { mode?: number | undefined; user?: string | undefined } = {},
  ): Promise<void> {
    const content = typeof data === "string" ? bytesOf(data) : data;
    const { mode, user } = options;
    await this.#transport.send(request.writeFile(this.#id, path, content, mode, user));
  }

  /** What is in a directory. */
  list(path: string): Promise<readonly models.FileEntry[]> {
    return this.#transport.send(request.listFiles(this.#id, path));
  }

  /** What kind of file it is, and its size, permissions, owner and time. */
  stat(path: string): Promise<models.FileEntry> {
    return this.#transport.send(request.statFile(this.#id, path));
  }

  /** Whether there is such a file or directory. */
  exists(path: string): Promise<boolean> {
    return flow.exists(this.#transport, this.#id, path);
  }

  /** Removes a file, or with `recursive` a directory and all in it. */
  remove(path: string, options: { recursive?: boolean } = {}): Promise<void> {
    return this.#transport.send(
      request.removeFile(this.#id, path, options.recursive ?? false),
    );
  }

  /** Makes a directory and those above it. New ones belong to `user`, or to root. */
  mkdir(path: string, options: { user?: string | undefined } = {}): Promise<void> {
    return this.#transport.send(request.makeDir(this.#id, path, options.user));
  }

  /** What happens to the files in a directory, from the end of this call on. */
  watch(path: string, options: { recursive?: boolean } = {}): Promise<Stream<FileChange>> {
    const source = new WatchSource(this.#id, path, options.recursive ?? false);
    return new Stream(this.#transport, source).open();
  }
}
