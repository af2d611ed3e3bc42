import { describe, expect, it } from "vitest";
import type { Schemas } from "../../api/types";
import { filtered, filterOf, nameOf, queryOf, sumsOf } from "./filter";

const space = (committed_bytes: number): Schemas["VolumeSpace"] => ({
  committed_bytes,
  common_bytes: 0,
  contents: [],
  logical_bytes: 0,
  other_bytes: 0,
  read_unix_ms: 0,
  shared_bytes: 0,
  unshared_bytes: 0,
});
const disk = (id: string, more: Partial<Schemas["Volume"]>): Schemas["Volume"] => ({
  id,
  datastore: "vms",
  encrypted: true,
  size_bytes: 10,
  thick: false,
  ...more,
});
const disks = [
  disk("1", { vm: "a", vm_name: "web1", disk: "disk0", space: space(3) }),
  disk("2", { vm: "a", vm_name: "web1", disk: "disk1", encrypted: false, size_bytes: 90 }),
  disk("3", { name: "data1", datastore: "more", space: space(7) }),
];
const shown = (query: string) =>
  filtered(disks, filterOf(new URLSearchParams(query))).map((each) => nameOf(each));

describe("disks", () => {
  it("are found by name, protection, owner and datastore", () => {
    expect(shown("")).toEqual(["web1/disk0", "web1/disk1", "data1"]);
    expect(shown("q=WEB1/disk1")).toEqual(["web1/disk1"]);
    expect(shown("seal=clear")).toEqual(["web1/disk1"]);
    expect(shown("seal=sealed&owner=vm")).toEqual(["web1/disk0"]);
    expect(shown("owner=none")).toEqual(["data1"]);
    expect(shown("datastore=more")).toEqual(["data1"]);
  });

  it("are ordered by size and by what they take, what is not known last", () => {
    expect(shown("sort=size")[0]).toBe("web1/disk1");
    expect(shown("sort=taken")).toEqual(["data1", "web1/disk0", "web1/disk1"]);
  });

  it("are summed without what is not known", () => {
    expect(sumsOf(disks)).toEqual({ size: 110, taken: 10, unread: 1 });
  });

  it("have their filter in the address", () => {
    const query = { q: "web", seal: "sealed", sort: "taken" };
    expect(queryOf(filterOf(new URLSearchParams(query)))).toEqual(query);
  });
});
