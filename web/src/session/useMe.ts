import { useAsk } from "../api/ask";
import type { OperationId, Schemas } from "../api/types";
import { createContext, useContext } from "react";
import { lacking, privilegesAt, refusalOf, type Place } from "./rights";

export const MeContext = createContext<Schemas["Me"] | undefined>(undefined);

export function useMe(): Schemas["Me"] {
  const me = useContext(MeContext);
  if (me === undefined) throw new Error("nobody is signed in here");
  return me;
}

/** Says of an operation why the caller may not do it; nothing if it may. */
export function useRefusal(): (operation: OperationId, place?: Place) => string | undefined {
  const me = useMe();
  const roles = useAsk("role_list", { query: { limit: 1000 } }, { enabled: me.grants.length > 0 });
  return (operation, place = {}) =>
    refusalOf(lacking(operation, privilegesAt(me, roles.data?.items ?? [], place), place));
}
