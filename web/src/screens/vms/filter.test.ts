import { describe, expect, it } from "vitest";
import type { VmSummary } from "../../api/types";
import { filtered, filterOf, isFiltering, queryOf } from "./filter";

function vm(name: string, fields: Partial<VmSummary> = {}): VmSummary {
  return {
    id: name,
    name,
    power: "running",
    desired: "running",
    lifecycle: "present",
    cpus: 1,
    memory_bytes: 1,
    disk_bytes: 1,
    encrypted: true,
    datastore: "vms",
    host: "hall1",
    ...fields,
  };
}

const vms = [
  vm("archive", { power: "stopped", host: null }),
  vm("db1", { tags: ["tier=db"], cpus: 4 }),
  vm("web1", { encrypted: false, cpus: 2 }),
  vm("web2", { partly_clear: true, policy: "gold" }),
];
const names = (query: string) =>
  filtered(vms, filterOf(new URLSearchParams(query))).map(({ name }) => name);

describe("a filter", () => {
  it("is what the address says, and says it", () => {
    const query = new URLSearchParams("q=web&seal=clear&sort=-cpus");
    expect(queryOf(filterOf(query))).toEqual({ q: "web", seal: "clear", sort: "-cpus" });
    expect(isFiltering(filterOf(query))).toBe(true);
    expect(isFiltering(filterOf(new URLSearchParams("sort=cpus")))).toBe(false);
  });

  it("finds parts of names and of tags, whatever their case", () => {
    expect(names("q=WEB")).toEqual(["web1", "web2"]);
    expect(names("q=tier=db")).toEqual(["db1"]);
  });

  it("tells what is sealed, partly clear and clear", () => {
    expect(names("seal=sealed")).toEqual(["archive", "db1"]);
    expect(names("seal=partly")).toEqual(["web2"]);
    expect(names("seal=clear")).toEqual(["web1"]);
  });

  it("finds VMs that have none of something", () => {
    expect(names("host=-")).toEqual(["archive"]);
    expect(names("policy=-")).toEqual(["archive", "db1", "web1"]);
  });

  it("orders, up and down", () => {
    expect(names("sort=cpus")).toEqual(["archive", "web2", "web1", "db1"]);
    expect(names("sort=-name")).toEqual(["web2", "web1", "db1", "archive"]);
  });
});
