/** Bytes and text. */

const lenient = new TextDecoder("utf-8", { ignoreBOM: true });
const strict = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });
const encoder = new TextEncoder();

/** UTF-8 as text; what is none is replaced. */
export function textOf(bytes: Uint8Array): string {
  return lenient.decode(bytes);
}

/** UTF-8 as text; undefined if it is none. */
export function exactTextOf(bytes: Uint8Array): string | undefined {
  try {
    return strict.decode(bytes);
  } catch {
    return undefined;
  }
}

/** Text as UTF-8. */
export function bytesOf(text: string): Uint8Array {
  return encoder.encode(text);
}

/** Several pieces as one. */
export function joined(pieces: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let offset = 0;
  for (const piece of pieces) {
    whole.set(piece, offset);
    offset += piece.length;
  }
  return whole;
}

/** What base64 means; undefined if it is none. */
export function ofBase64(text: string): Uint8Array | undefined {
  const bytes = Buffer.from(text, "base64");
  // `Buffer` overlooks what does not belong there.
  return bytes.toString("base64") === text ? new Uint8Array(bytes) : undefined;
}

/** Bytes as base64. */
export function base64Of(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
}
