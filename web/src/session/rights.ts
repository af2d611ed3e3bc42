import { RIGHTS } from "../api/generated/rights";
import type { Right, Privilege, Schemas } from "../api/types";

type Me = Pick<Schemas["Me"], "site" | "places">;

/** The place that a right is wanted for. */
export interface Place {
  vm?: { id: string; name: string; folder?: string | null; encrypted: boolean };
  datastore?: { id: string; name: string };
  network?: { id: string; name: string };
}

/** Whether a role that is given for a scope counts at a place. */
export function covers(scope: Schemas["Scope"], { vm, datastore, network }: Place): boolean {
  switch (scope.type) {
    case "site":
      return true;
    case "folder":
      return vm?.folder === scope.folder;
    case "vm":
      return vm?.id === scope.vm || vm?.name === scope.vm;
    case "datastore":
      return datastore?.id === scope.datastore || datastore?.name === scope.datastore;
    case "network":
      return network?.id === scope.network || network?.name === scope.network;
  }
}

/** What somebody may do at a place: everywhere, and at all that the place is or is in. */
export function privilegesAt({ site, places = [] }: Me, place: Place): ReadonlySet<Privilege> {
  const there = places.filter(({ scope }) => covers(scope, place));
  return new Set([...site, ...there.flatMap(({ privileges }) => privileges)]);
}

/** The privileges that an operation takes and somebody lacks at a place. */
export function lacking(
  operation: Right,
  has: ReadonlySet<Privilege>,
  { vm }: Place,
): readonly Privilege[] {
  const right = RIGHTS[operation];
  if (right === undefined) return [];
  const takes = vm?.encrypted === true ? [...right.takes, ...right.ifEncrypted] : right.takes;
  return takes.filter((privilege) => !has.has(privilege));
}

/** Why somebody may not do something, in words. */
export function refusalOf(missing: readonly Privilege[]): string | undefined {
  if (missing.length === 0) return undefined;
  const names = missing.join(", ");
  return `Your roles lack ${names}. An administrator grants it.`;
}
