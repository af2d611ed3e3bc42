import { describe, expect, it } from "vitest";
import type { Snapshot } from "../../api/types";
import { treeOf } from "./tree";

function snapshot(name: string, parent?: string, isCurrent = false): Snapshot {
  return {
    id: name,
    name,
    at_unix_seconds: 0,
    volumes: ["disk0"],
    is_current: isCurrent,
    ...(parent === undefined ? {} : { parent }),
  };
}

const drawn = (snapshots: readonly Snapshot[]) =>
  treeOf(snapshots).map(
    ({ snapshot: of, lane, parent }) => `${of?.name ?? "now"} ${lane} ${parent ?? "-"}`,
  );

describe("the tree of snapshots", () => {
  it("is the present content alone without snapshots", () => {
    expect(drawn([])).toEqual(["now 0 -"]);
  });

  it("is one line without branches", () => {
    expect(drawn([snapshot("a"), snapshot("b", "a", true)])).toEqual(["a 0 -", "b 0 0", "now 0 1"]);
  });

  it("keeps the present branch on the first lane, and draws others before it goes on", () => {
    const snapshots = [
      snapshot("a"),
      snapshot("b", "a"),
      snapshot("c", "b"),
      snapshot("d", "a", true),
    ];
    expect(drawn(snapshots)).toEqual(["a 0 -", "b 1 0", "c 1 1", "d 0 0", "now 0 3"]);
  });

  it("branches in branches", () => {
    const snapshots = [
      snapshot("a", undefined, true),
      snapshot("b", "a"),
      snapshot("c", "b"),
      snapshot("d", "b"),
    ];
    expect(drawn(snapshots)).toEqual(["a 0 -", "b 1 0", "c 2 1", "d 1 1", "now 0 0"]);
  });

  it("has every snapshot once, also one whose parent is gone", () => {
    const snapshots = [snapshot("a", "gone"), snapshot("b", undefined, true), snapshot("c", "a")];
    const rows = treeOf(snapshots);
    expect(rows.map(({ snapshot: of }) => of?.name).sort()).toEqual(["a", "b", "c", undefined]);
    expect(rows.every(({ parent }, index) => parent === undefined || parent < index)).toBe(true);
  });
});
