import { expect, test } from "vitest";
import type { Alarm, VmSummary } from "../../api/types";
import { filtered, filterOf, queryOf, standingOf, standingsOf } from "./standing";

const vm = (name: string, rest: Partial<VmSummary> = {}): VmSummary => ({
  id: name,
  name,
  cpus: 1,
  datastore: "vms",
  desired: "running",
  disk_bytes: 0,
  encrypted: true,
  lifecycle: "present",
  memory_bytes: 0,
  power: "running",
  ...rest,
});
const alarm = (kind: string, name: string): Alarm => ({
  kind: kind as Alarm["kind"],
  severity: "warning",
  object: { kind: "vm", name },
  message: "",
  next_step: "",
  since_unix_ms: 0,
});
const nothing = filterOf(new URLSearchParams());

test("the worst that alarms say of a VM counts, and what needs somebody is first", () => {
  const standings = standingsOf([
    alarm("key_expiry", "b"),
    alarm("data_keys_overdue", "b"),
    alarm("vm_crashed", "c"),
  ]);
  expect(standings.get("b")).toBe("overdue");
  expect(standingOf(vm("c"), standings)).toBe("fine");
  expect(standingOf(vm("d", { power: "key_unavailable" }), standings)).toBe("unavailable");
  expect(standingOf(vm("e", { encrypted: false }), standings)).toBe("none");
  const vms = [vm("a"), vm("b"), vm("d", { power: "key_unavailable" })];
  expect(filtered(vms, standings, nothing).map(({ name }) => name)).toEqual(["d", "b", "a"]);
});

test("a filter is in the address, and comes back from it", () => {
  const filter = { ...nothing, text: "web", standing: "overdue" };
  expect(filterOf(new URLSearchParams(queryOf(filter)))).toEqual(filter);
  expect(queryOf(nothing)).toEqual({});
});
