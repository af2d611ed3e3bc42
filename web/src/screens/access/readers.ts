import { holderOf } from "../../actions/access";
import type { Privilege, Schemas } from "../../api/types";
import { scopeInWords } from "./privileges";

type Review = Schemas["Review"];
type Scope = Schemas["Scope"];

/** Somebody who can read what guests have, and how. */
export interface Reader {
  who: string;
  kind: "user" | "group" | "token";
  where: string;
  scope: Scope;
  role: string;
  /** The ways to content of encrypted VMs; they take `access` as well. */
  sealed: readonly Way[];
  /** The ways to content of VMs in plain text. */
  clear: readonly Way[];
}

export type Way = "console" | "export" | "decrypt" | "guest_control";

/** Privileges that lead to a guest's data; `guest_control` lets somebody boot what reads it. */
const WAYS: readonly Way[] = ["console", "export", "decrypt", "guest_control"];

function waysOf(privileges: readonly Privilege[]): Pick<Reader, "sealed" | "clear"> {
  const ways = WAYS.filter((way) => privileges.includes(way));
  return {
    sealed: privileges.includes("access") ? ways : [],
    clear: ways.filter((way) => way !== "decrypt"),
  };
}

/** Reaches a VM: roles for a datastore or a network do not count for the VMs on it. */
function reachesVms({ type }: Scope): boolean {
  return type === "site" || type === "folder" || type === "vm";
}

/** Who could read the data of guests, by the roles that they have. */
export function readersOf(review: Review): readonly Reader[] {
  const privileges = new Map(review.roles.map(({ name, privileges: of }) => [name, of]));
  const reader = (who: string, kind: Reader["kind"], role: string, scope: Scope): Reader => ({
    who,
    kind,
    role,
    where: scopeInWords(scope),
    scope,
    ...(reachesVms(scope) ? waysOf(privileges.get(role) ?? []) : { sealed: [], clear: [] }),
  });
  return [
    ...review.users.flatMap(({ name, grants }) =>
      grants.map(({ role, scope }) => reader(name, "user", role, scope)),
    ),
    ...(review.group_grants ?? []).map((grant) =>
      reader(holderOf(grant), "group", grant.role, grant.scope),
    ),
    ...review.tokens.map(({ name, role, scope }) => reader(name, "token", role, scope)),
  ].filter(({ sealed, clear }) => sealed.length > 0 || clear.length > 0);
}
