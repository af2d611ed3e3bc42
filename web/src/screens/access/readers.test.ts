import { expect, test } from "vitest";
import type { Schemas } from "../../api/types";
import { readersOf } from "./readers";

const grant = (user: string, role: string, scope: Schemas["Scope"]): Schemas["Grant"] => ({
  id: `${user} ${role}`,
  user,
  role,
  scope,
  by: "admin",
  created_unix_seconds: 0,
});
const user = (name: string, grants: Schemas["Grant"][]): Schemas["User"] => ({
  id: name,
  name,
  grants,
  created_unix_seconds: 0,
});
const site = { type: "site" } as const;

test("only who has access reads encrypted VMs, and roles for a datastore read none", () => {
  const review: Schemas["Review"] = {
    roles: [
      { name: "all", built_in: true, privileges: ["view", "console", "export", "access"] },
      { name: "operator", built_in: true, privileges: ["view", "console"] },
      { name: "auditor", built_in: true, privileges: ["view", "audit"] },
    ],
    users: [
      user("ada", [grant("ada", "all", { type: "folder", folder: "tenant1" })]),
      user("bo", [grant("bo", "operator", site)]),
      user("cy", [grant("cy", "auditor", site)]),
      user("di", [grant("di", "all", { type: "datastore", datastore: "vms" })]),
    ],
    tokens: [],
    unlimited_tokens: 1,
  };
  expect(readersOf(review)).toEqual([
    {
      who: "ada",
      kind: "user",
      role: "all",
      where: "folder tenant1",
      scope: { type: "folder", folder: "tenant1" },
      sealed: ["console", "export"],
      clear: ["console", "export"],
    },
    {
      who: "bo",
      kind: "user",
      role: "operator",
      where: "the whole site",
      scope: site,
      sealed: [],
      clear: ["console"],
    },
  ]);
});
