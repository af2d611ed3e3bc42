import { describe, expect, it } from "vitest";
import type { Schemas } from "../api/types";
import { lacking, privilegesAt, refusalOf } from "./rights";

const sealed = { id: "1", name: "web1", folder: "tenant1", encrypted: true };

describe("rights", () => {
  it("of a folder count for its VMs alone", () => {
    const me = {
      site: [],
      places: [
        {
          scope: { type: "folder" as const, folder: "tenant1" },
          privileges: ["view" as const, "power" as const],
        },
      ],
    };
    expect(lacking("vm_start", privilegesAt(me, { vm: sealed }), { vm: sealed })).toEqual([]);
    const other = { vm: { ...sealed, folder: "tenant2" } };
    expect(lacking("vm_start", privilegesAt(me, other), other)).toEqual(["power"]);
    expect(lacking("host_list", privilegesAt(me, {}), {})).toEqual(["view"]);
  });

  it("for encrypted VMs take more", () => {
    const has = new Set<Schemas["Privilege"]>(["snapshot", "guest_control"]);
    expect(lacking("vm_snapshot_revert", has, { vm: sealed })).toEqual(["access"]);
    expect(lacking("vm_snapshot_revert", has, { vm: { ...sealed, encrypted: false } })).toEqual([]);
  });

  it("that are lacking are named", () => {
    expect(refusalOf([])).toBeUndefined();
    expect(refusalOf(["power"])).toContain("power");
  });
});
