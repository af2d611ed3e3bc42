import { describe, expect, it } from "vitest";
import type { Schemas } from "../api/types";
import { lacking, privilegesAt, refusalOf } from "./rights";

const roles: Schemas["Role"][] = [
  { name: "operator", built_in: true, privileges: ["view", "power"] },
];
const grant = (scope: Schemas["Scope"]): Schemas["Grant"] => ({
  id: "1",
  by: "admin",
  created_unix_seconds: 0,
  role: "operator",
  scope,
});
const sealed = { id: "1", name: "web1", folder: "tenant1", encrypted: true };

describe("rights", () => {
  it("of a folder count for its VMs alone", () => {
    const me: Schemas["Me"] = {
      name: "ada",
      site: [],
      grants: [grant({ type: "folder", folder: "tenant1" })],
    };
    expect(lacking("vm_start", privilegesAt(me, roles, { vm: sealed }), { vm: sealed })).toEqual(
      [],
    );
    const other = { vm: { ...sealed, folder: "tenant2" } };
    expect(lacking("vm_start", privilegesAt(me, roles, other), other)).toEqual(["power"]);
    expect(lacking("host_list", privilegesAt(me, roles, {}), {})).toEqual(["view"]);
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
