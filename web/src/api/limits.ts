import { LIMITS } from "./generated/limits";

/** The limits of one value, as the API's document states them. */
export interface Limits {
  minimum?: number;
  maximum?: number;
  multipleOf?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  maxItems?: number;
  enum?: readonly string[];
}

type Form = keyof typeof LIMITS;
export type FieldOf<Of extends Form> = keyof (typeof LIMITS)[Of];

/** The limits of a field of a request's body. */
export function limitsOf<Of extends Form>(form: Of, field: FieldOf<Of>): Limits {
  return LIMITS[form][field] as Limits;
}

/** What is wrong with a text, in words; nothing if it is within its limits. */
export function textFault(limits: Limits, text: string): string | undefined {
  const { minLength = 0, maxLength, pattern } = limits;
  if (text.length < minLength)
    return minLength === 1 ? "This is needed." : `At least ${minLength} characters.`;
  if (maxLength !== undefined && text.length > maxLength) return `At most ${maxLength} characters.`;
  if (pattern !== undefined && !new RegExp(pattern, "u").test(text)) return patternInWords(pattern);
  return undefined;
}

/** What is wrong with a number; `show` writes one with its unit. */
export function numberFault(
  limits: Limits,
  value: number | undefined,
  show: (value: number) => string = String,
): string | undefined {
  const { minimum, maximum, multipleOf } = limits;
  if (value === undefined || !Number.isFinite(value)) return "A number is needed.";
  if (minimum !== undefined && value < minimum) return `At least ${show(minimum)}.`;
  if (maximum !== undefined && value > maximum) return `At most ${show(maximum)}.`;
  if (multipleOf !== undefined && value % multipleOf !== 0)
    return `A multiple of ${show(multipleOf)}.`;
  return undefined;
}

const IN_WORDS: readonly (readonly [start: string, words: string])[] = [
  ["^[A-Za-z0-9][A-Za-z0-9._/-]", "KEY or KEY=VALUE, of letters, digits and . _ / -"],
  [
    "^[A-Za-z0-9][A-Za-z0-9._-]",
    "Letters, digits, dots, dashes and underscores; a letter or digit first.",
  ],
  ["^[0-9]{6}$", "Six digits."],
  ["^/", "A path that begins with /."],
];

function patternInWords(pattern: string): string {
  return IN_WORDS.find(([start]) => pattern.startsWith(start))?.[1] ?? `It has to match ${pattern}`;
}
