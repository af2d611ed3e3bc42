import { Store } from "../lib/store";

/** Whether what is shown is kept up to date, and since when it is not. */
export type Live = { kind: "beginning" } | { kind: "live" } | { kind: "stale"; sinceMs: number };

export const live = new Store<Live>({ kind: "beginning" });

export function becomeConnected(isConnected: boolean): void {
  if (isConnected) live.become({ kind: "live" });
  else if (live.state().kind !== "stale") live.become({ kind: "stale", sinceMs: Date.now() });
}
