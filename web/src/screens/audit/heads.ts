import type { Schemas } from "../../api/types";

type Head = Schemas["AccessLogHead"];

function isHead(value: unknown): value is Head {
  if (typeof value !== "object" || value === null) return false;
  const { id, hash } = value as Partial<Record<keyof Head, unknown>>;
  return (
    Number.isSafeInteger(id) &&
    (id as number) >= 0 &&
    typeof hash === "string" &&
    /^[0-9a-f]{64}$/.test(hash)
  );
}

/** The heads in a text, one JSON object a line; nothing if one of them is none. */
export function headsOf(text: string): readonly Head[] | undefined {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  try {
    const heads = lines.map((line): unknown => JSON.parse(line));
    return heads.every(isHead) ? heads.map(({ id, hash }) => ({ id, hash })) : undefined;
  } catch {
    return undefined;
  }
}
