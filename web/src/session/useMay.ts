import type { Right } from "../api/types";
import type { Choice } from "../ui/Menu";
import type { Place } from "./rights";
import { useRefusal } from "./useMe";

/** Adds to a choice why the caller may not do it, if so. */
export function useMay(): (operation: Right, choice: Choice, place?: Place) => Choice {
  const refusal = useRefusal();
  return (operation, choice, place) => {
    const why = refusal(operation, place) ?? choice.refusal;
    return why === undefined ? choice : { ...choice, refusal: why };
  };
}
