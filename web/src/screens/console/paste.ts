/** Bytes of one message at most; the relay takes 256 KiB. */
const PIECE_BYTES = 16 * 1024;
/** A serial line takes some thousand characters a second. */
export const PASTE_MAX = 256 * 1024;
const BEGIN = "\x1b[200~";
const END = "\x1b[201~";

/**
 * A text as keys would give it. Control characters are left out: an escape in a copied text could
 * end a bracketed paste, and have what follows taken for typed.
 */
export function asTyped(text: string): string {
  return (
    text
      .replace(/\r\n?|\n/g, "\r")
      // eslint-disable-next-line no-control-regex
      .replace(/[\x00-\x08\x0a-\x0c\x0e-\x1f\x7f-\x9f]/g, "")
  );
}

/** How many lines a guest would run at once: a text without a line's end runs nothing. */
export function linesOf(text: string): number {
  const typed = asTyped(text);
  return typed.includes("\r") ? typed.replace(/\r$/, "").split("\r").length : 0;
}

/** What is sent for a paste. A guest that has asked for it is told where it begins and ends. */
export function pasted(text: string, isBracketed: boolean): string {
  return isBracketed ? `${BEGIN}${asTyped(text)}${END}` : asTyped(text);
}

const encoder = new TextEncoder();

/** Bytes to send, in messages that the relay takes. */
export function* pieces(text: string): Generator<Uint8Array<ArrayBuffer>> {
  const bytes = encoder.encode(text);
  for (let start = 0; start < bytes.length; start += PIECE_BYTES)
    yield bytes.slice(start, start + PIECE_BYTES);
}
