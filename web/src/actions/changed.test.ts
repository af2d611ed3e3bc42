import { expect, test } from "vitest";
import { objectsChangedBy } from "./changed";

test("a request changes the answers about its own object and those that contain it", () => {
  expect(objectsChangedBy("grant_create")).toContain("user");
  expect(objectsChangedBy("hosts_balance")).toContain("balance");
  expect(objectsChangedBy("recipient_test")).toEqual(["recipient"]);
  expect(objectsChangedBy("vm_start")).toEqual([]);
});
