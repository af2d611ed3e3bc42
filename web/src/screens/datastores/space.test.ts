import { expect, test } from "vitest";
import type { Schemas } from "../../api/types";
import { usesOf } from "./space";

const volume = (rest: Partial<Schemas["Volume"]>): Schemas["Volume"] => ({
  id: "1",
  datastore: "vms",
  encrypted: true,
  thick: false,
  size_bytes: 100,
  ...rest,
});
const space = (committed_bytes: number) =>
  ({ committed_bytes }) as NonNullable<Schemas["Volume"]["space"]>;

test("disks of a VM count together, and the largest use is first", () => {
  const uses = usesOf([
    volume({ id: "1", vm_name: "web1", space: space(10) }),
    volume({ id: "2", vm_name: "web1", space: space(15) }),
    volume({ id: "3", name: "data", space: space(40) }),
    volume({ id: "4", vm_name: "new" }),
  ]);
  expect(uses.map(({ owner, committed, unread }) => [owner, committed, unread])).toEqual([
    ["data", 40, 0],
    ["web1", 25, 0],
    ["new", 0, 1],
  ]);
  expect(uses[1]?.volumes).toBe(2);
});
