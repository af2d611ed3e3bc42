/** A key as RFB names it: an X keysym, and where it is on a keyboard. */
export interface Key {
  keysym: number;
  code: string;
}

const key = (keysym: number, code: string): Key => ({ keysym, code });

export const CONTROL = key(0xffe3, "ControlLeft");
export const ALT = key(0xffe9, "AltLeft");
const SUPER = key(0xffeb, "MetaLeft");
const DELETE = key(0xffff, "Delete");
const FUNCTION_KEYS = [1, 2, 3, 4, 5, 6, 7];

export interface Chord {
  id: string;
  label: string;
  keys: readonly Key[];
}

export const CONTROL_ALT_DELETE: Chord = {
  id: "c-a-delete",
  label: "Ctrl Alt Del",
  keys: [CONTROL, ALT, DELETE],
};

/** What a browser, or the machine that it is on, keeps for itself. */
export const CHORDS: readonly Chord[] = [
  CONTROL_ALT_DELETE,
  { id: "escape", label: "Esc", keys: [key(0xff1b, "Escape")] },
  { id: "tab", label: "Tab", keys: [key(0xff09, "Tab")] },
  { id: "super", label: "Windows key", keys: [SUPER] },
  { id: "a-tab", label: "Alt Tab", keys: [ALT, key(0xff09, "Tab")] },
  { id: "a-f4", label: "Alt F4", keys: [ALT, key(0xffc1, "F4")] },
  { id: "c-w", label: "Ctrl W", keys: [CONTROL, key(0x77, "KeyW")] },
  { id: "c-close", label: "Ctrl ]", keys: [CONTROL, key(0x5d, "BracketRight")] },
  { id: "print", label: "Print Screen", keys: [key(0xff61, "PrintScreen")] },
  { id: "c-a-back", label: "Ctrl Alt Backspace", keys: [CONTROL, ALT, key(0xff08, "Backspace")] },
  ...FUNCTION_KEYS.map((number) => ({
    id: `c-a-f${number}`,
    label: `Ctrl Alt F${number}`,
    keys: [CONTROL, ALT, key(0xffbd + number, `F${number}`)],
  })),
];

const NAMED: Readonly<Record<string, number>> = { "\n": 0xff0d, "\t": 0xff09 };
const UNICODE = 0x01000000;

/** The keysym of a character: Latin 1 is its own, the others are by their code point. */
export function keysymOf(character: string): number | undefined {
  const named = NAMED[character];
  if (named !== undefined) return named;
  const point = character.codePointAt(0) ?? 0;
  const isControl = point < 0x20 || (point >= 0x7f && point < 0xa0);
  if (isControl) return undefined;
  return point < 0x100 ? point : UNICODE + point;
}

/** The keysyms that type a text. */
export function keysymsOf(text: string): readonly number[] {
  return Array.from(text.replace(/\r\n?/g, "\n"))
    .map(keysymOf)
    .filter((keysym) => keysym !== undefined);
}

export const BACKSPACE = 0xff08;

/**
 * What a phone's keyboard has done to a text: how many characters it has taken from its end, and
 * what it has added.
 */
export function difference(former: string, now: string): { taken: number; added: string } {
  const [a, b] = [Array.from(former), Array.from(now)];
  let same = 0;
  while (same < a.length && same < b.length && a[same] === b[same]) same += 1;
  return { taken: a.length - same, added: b.slice(same).join("") };
}
