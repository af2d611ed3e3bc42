import { Problem } from "../api/problem";

/** What a host has admitted this page to. */
export interface Welcome {
  /** Whether what is typed reaches the guest. */
  writer: boolean;
  /** How many bytes of former output follow; unknown from an older host. */
  recordedBytes?: number;
  /** By what news of the host is known in the output; an older host has none. */
  news?: string;
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

/** The command of the control string with which a host says that another client writes now. */
export const NEWS_COMMAND = 7341;

/** Who writes now, if a control string is news of the host, which knows a text that no guest does. */
export function readNews(said: string, news: string | undefined): string | undefined {
  if (news === undefined || !said.startsWith(`${news};`)) return undefined;
  return text(said.slice(news.length + 1)) ?? "somebody";
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
    const news = text(field(field(welcome, "console"), "news"));
    return {
      writer,
      ...(typeof recorded === "number" && Number.isSafeInteger(recorded) && recorded >= 0
        ? { recordedBytes: recorded }
        : {}),
      ...(news === undefined ? {} : { news }),
    };
  }
  const said = text(field(field(value, "error"), "message"));
  if (said === undefined) return unclear;
  return new Problem("host_failed", said, text(field(field(value, "error"), "next_step")));
}
