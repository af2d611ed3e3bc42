import { useSearchParams } from "wouter";

/** Whether a guest is only looked at, as the address says, and how to change that. */
export function useLook(): readonly [isLook: boolean, look: (isLook: boolean) => void] {
  const [query, setQuery] = useSearchParams();
  const isLook = query.get("look") === "only";
  return [isLook, (next) => setQuery(next ? { look: "only" } : {}, { replace: true })];
}
