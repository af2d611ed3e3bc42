/** Selected VMs by id. */
export type Selection = ReadonlySet<string>;

export const NOTHING: Selection = new Set();

export function toggled(selection: Selection, id: string): Selection {
  const next = new Set(selection);
  if (!next.delete(id)) next.add(id);
  return next;
}

/** With all between two places of a list. */
export function withRange(
  selection: Selection,
  ids: readonly string[],
  from: number,
  to: number,
): Selection {
  return new Set([...selection, ...ids.slice(Math.min(from, to), Math.max(from, to) + 1)]);
}
