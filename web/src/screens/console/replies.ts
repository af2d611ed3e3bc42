/**
 * What a terminal says by itself when a program asks it something: where the cursor is, which
 * terminal it is, its colours. A person types none of these.
 */
const REPLY =
  // eslint-disable-next-line no-control-regex
  /^(?:\x1b\[[?>]?[\d;]*(?:[Rcntx]|\$y)|\x1b[P\]][^\x07\x1b]*(?:\x07|\x1b\\))+$/;

export function isReply(text: string): boolean {
  return REPLY.test(text);
}
