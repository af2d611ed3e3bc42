import { createContext, useCallback, useContext, useMemo } from "react";
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
  const isScoped = (me.places ?? []).length > 0;
  const everywhere = useMemo(() => new Set(me.site), [me]);
  return useCallback(
    (operation, place = {}) => {
      // Most callers have the same rights everywhere, and lists ask of thousands of places.
      const has = isScoped ? privilegesAt(me, place) : everywhere;
      return refusalOf(lacking(operation, has, place));
    },
    [me, isScoped, everywhere],
  );
}
