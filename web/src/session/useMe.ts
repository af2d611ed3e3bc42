import { createContext, useCallback, useContext, useMemo } from "react";
import { useAsk } from "../api/ask";
import type { Right, Schemas } from "../api/types";
import { lacking, privilegesAt, refusalOf, type Place } from "./rights";

export const MeContext = createContext<Schemas["Me"] | undefined>(undefined);

export function useMe(): Schemas["Me"] {
  const me = useContext(MeContext);
  if (me === undefined) throw new Error("nobody is signed in here");
  return me;
}

export type Refusal = (operation: Right, place?: Place) => string | undefined;

/** Says of an operation why the caller may not do it; nothing if it may. */
export function useRefusal(): Refusal {
  const me = useMe();
  const isGranted = me.grants.length > 0;
  const roles = useAsk("role_list", { query: { limit: 1000 } }, { enabled: isGranted }).data?.items;
  const everywhere = useMemo(() => new Set(me.site), [me]);
  return useCallback(
    (operation, place = {}) => {
      // Most callers have the same rights everywhere, and lists ask of thousands of places.
      const has = isGranted ? privilegesAt(me, roles ?? [], place) : everywhere;
      return refusalOf(lacking(operation, has, place));
    },
    [me, roles, isGranted, everywhere],
  );
}
