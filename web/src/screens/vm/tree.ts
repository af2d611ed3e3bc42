import type { Snapshot } from "../../api/types";

/** A line of the drawing: a snapshot, or the present content. */
export interface Row {
  snapshot: Snapshot | undefined;
  /** Which of the parallel lines it is on, from the left. */
  lane: number;
  /** The row that its content was based on. */
  parent: number | undefined;
}

/**
 * The snapshots of a VM as a tree from above: what the present content is based on is on the first
 * lane and ends with it; each other branch is on a lane beside it, before that goes on.
 */
export function treeOf(snapshots: readonly Snapshot[]): readonly Row[] {
  const known = new Map(snapshots.map((snapshot) => [snapshot.id, snapshot]));
  const parentOf = ({ parent }: Snapshot) =>
    typeof parent === "string" ? known.get(parent) : undefined;
  const current = new Set<Snapshot>();
  for (
    let at = snapshots.find(({ is_current }) => is_current);
    at !== undefined && !current.has(at);
    at = parentOf(at)
  ) {
    current.add(at);
  }
  const childrenOf = (of: Snapshot | undefined) =>
    snapshots.filter((snapshot) => parentOf(snapshot) === of);
  const rows: Row[] = [];

  const add = (snapshot: Snapshot | undefined, lane: number, parent: number | undefined) => {
    rows.push({ snapshot, lane, parent });
    return rows.length - 1;
  };
  const walk = (children: readonly Snapshot[], lane: number, parent: number | undefined) => {
    const straight =
      children.find((child) => current.has(child)) ?? (lane > 0 ? children.at(-1) : undefined);
    for (const child of children) if (child !== straight) branch(child, lane + 1, parent);
    if (straight !== undefined) branch(straight, lane, parent);
  };
  const branch = (snapshot: Snapshot, lane: number, parent: number | undefined) => {
    const row = add(snapshot, lane, parent);
    walk(childrenOf(snapshot), lane, row);
    if (snapshot.is_current) add(undefined, lane, row);
  };

  const roots = childrenOf(undefined);
  walk(roots, 0, undefined);
  if (current.size === 0) add(undefined, 0, undefined);
  return rows;
}
