import type { Schemas } from "../../api/types";

type Entry = Schemas["AccessEntry"];

/** Which entries are asked for, as the address has it. */
export interface LogFilter {
  by: string;
  /** A time in seconds; nothing for all. */
  since: string;
  /** A kind, among those that were read. */
  kind: string;
}

export const SINCE = [
  { value: "", label: "All time" },
  { value: "3600", label: "The last hour" },
  { value: "86400", label: "The last day" },
  { value: "604800", label: "The last 7 days" },
  { value: "2592000", label: "The last 30 days" },
];

export function filterOf(query: URLSearchParams): LogFilter {
  return {
    by: query.get("by") ?? "",
    since: query.get("since") ?? "",
    kind: query.get("kind") ?? "",
  };
}

export function queryOf(filter: LogFilter): Record<string, string> {
  return Object.fromEntries(Object.entries(filter).filter(([, value]) => value !== ""));
}

/** A part of the log: the entries after a number, the oldest first. */
export interface Part {
  after: number;
  limit: number;
}

interface Page {
  items: readonly Entry[];
  total: number;
}

/**
 * The part before those that were read, of `size` numbers. The newest page was asked for without a
 * part. Nothing if all that match have come, or the log has no more.
 */
export function nextPage(
  pages: readonly Page[],
  parts: readonly (Part | undefined)[],
  size: number,
): Part | undefined {
  const matching = pages[0]?.total ?? 0;
  if (newestFirst(pages.map(({ items }) => items)).length >= matching) return undefined;
  const last = parts.at(-1);
  const oldest = last === undefined ? (pages[0]?.items[0]?.id ?? 1) : last.after + 1;
  if (oldest <= 1) return undefined;
  const after = Math.max(0, oldest - 1 - size);
  return { after, limit: oldest - 1 - after };
}

/** Entries from several pages, the newest first, each once. */
export function newestFirst(pages: readonly (readonly Entry[])[]): readonly Entry[] {
  const entries = new Map<number, Entry>();
  for (const page of pages) for (const entry of page) entries.set(entry.id, entry);
  return [...entries.values()].sort((one, other) => other.id - one.id);
}
