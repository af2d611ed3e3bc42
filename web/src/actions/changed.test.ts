import { expect, test } from "vitest";
import { isChangedBy, objectsChangedBy } from "./changed";

test("a request changes the answers about its own object and those that contain it", () => {
  expect(objectsChangedBy("grant_create")).toContain("user");
  expect(objectsChangedBy("hosts_balance")).toContain("balance");
  expect(objectsChangedBy("recipient_test")).toEqual(["recipient"]);
  expect(objectsChangedBy("vm_start")).toEqual([]);
});

test("what a request has deleted is not asked for again", () => {
  expect(isChangedBy("policy_show", "policy_delete")).toBe(false);
  expect(isChangedBy("datastore_scan", "datastore_remove")).toBe(false);
  expect(isChangedBy("policy_list", "policy_delete")).toBe(true);
  expect(isChangedBy("datastore_show", "datastore_remove_host")).toBe(true);
  expect(isChangedBy("policy_show", "policy_set")).toBe(true);
});
