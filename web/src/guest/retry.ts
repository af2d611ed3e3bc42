/** Pauses before connections are tried again. Each ticket is on record, so they grow. */
const FIRST_MS = 500;
const LONGEST_MS = 30_000;
/** Some minutes; then a person is asked. */
const TRIES_MAX = 16;
/** A connection that lasts so long is one that works. */
export const STEADY_MS = 10_000;

/**
 * The pause before a try, in milliseconds; nothing if there has been enough of them. `chance`, from
 * 0 to 1, keeps the pages that a server has lost from coming back all at once.
 */
export function pauseBefore(tries: number, chance: number): number | undefined {
  if (tries >= TRIES_MAX) return undefined;
  const whole = Math.min(LONGEST_MS, FIRST_MS * 2 ** tries);
  return Math.round(whole * (0.5 + chance / 2));
}
