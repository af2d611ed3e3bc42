/** Keys that a phone has not, or that a browser keeps for itself. */
export const KEYS = {
  escape: { label: "Esc", says: "Esc", sends: "\x1b" },
  tab: { label: "Tab", says: "Tab", sends: "\t" },
  left: { label: "\u2190", says: "Left", sends: "D" },
  up: { label: "\u2191", says: "Up", sends: "A" },
  down: { label: "\u2193", says: "Down", sends: "B" },
  right: { label: "\u2192", says: "Right", sends: "C" },
} as const;

export type Key = keyof typeof KEYS;

/** What a key sends; arrows depend on what the guest has asked for. */
export function sentBy(key: Key, isApplication: boolean): string {
  const { sends } = KEYS[key];
  const isArrow = /^[A-D]$/.test(sends);
  return isArrow ? `\x1b${isApplication ? "O" : "["}${sends}` : sends;
}

/** What Ctrl makes of a character; nothing if it makes nothing of it. */
export function withControl(character: string): string | undefined {
  if (character === " ") return "\0";
  if (character === "?") return "\x7f";
  const code = character.toUpperCase().charCodeAt(0);
  const isTaken = character.length === 1 && code >= 0x40 && code <= 0x5f;
  return isTaken ? String.fromCharCode(code & 0x1f) : undefined;
}
