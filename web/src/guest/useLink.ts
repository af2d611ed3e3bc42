import { useEffect } from "react";
import type { Vm } from "../api/types";
import type { GuestLink } from "./link";
import { isReachable } from "./powered";

/** Connects for as long as there is something to connect to. */
export function useLink(
  link: GuestLink,
  { power, vnc }: Pick<Vm, "power" | "vnc">,
  needsScreen = false,
): void {
  const isThere = isReachable(power) && (!needsScreen || vnc === true);
  useEffect(() => {
    if (isThere) link.connect();
    return () => link.close();
  }, [link, isThere]);
}
