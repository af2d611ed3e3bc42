import { Problem } from "../api/problem";

/** What a host has admitted this page to. */
export interface Welcome {
  /** Whether what is typed reaches the guest. */
  writer: boolean;
  /** How many bytes of former output follow; unknown from an older host. */
  recordedBytes?: number;
}

const TEXT_MAX = 2_000;

function field(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null
    ? (value as Readonly<Record<string, unknown>>)[name]
    : undefined;
}

function text(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value.slice(0, TEXT_MAX) : undefined;
}

/** The first message of a connection to a guest. It comes from a host, which is not believed. */
export function readFirst(message: unknown): Welcome | Problem {
  const unclear = new Problem("internal", "the relay answers something else");
  if (typeof message !== "string") return unclear;
  let value: unknown;
  try {
    value = JSON.parse(message);
  } catch {
    return unclear;
  }
  const welcome = field(value, "welcome");
  if (welcome === "vnc" || welcome === "upload") return { writer: true };
  const writer = field(field(welcome, "console"), "writer");
  if (typeof writer === "boolean") {
    const recorded = field(field(welcome, "console"), "recorded_bytes");
    return typeof recorded === "number" && Number.isSafeInteger(recorded) && recorded >= 0
      ? { writer, recordedBytes: recorded }
      : { writer };
  }
  const said = text(field(field(value, "error"), "message"));
  if (said === undefined) return unclear;
  return new Problem("host_failed", said, text(field(field(value, "error"), "next_step")));
}
