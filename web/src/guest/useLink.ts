import { useEffect } from "react";
import type { Vm } from "../api/types";
import { useStore } from "../lib/store";
import { expired } from "../session/expiry";
import type { GuestLink } from "./link";
import { isReachable } from "./powered";

/** Connects for as long as there is something to connect to, and the session lasts. */
export function useLink(
  link: GuestLink,
  { power, vnc }: Pick<Vm, "power" | "vnc">,
  needsScreen = false,
): void {
  const isOver = useStore(expired).length > 0;
  const isThere = !isOver && isReachable(power) && (!needsScreen || vnc === true);
  useEffect(() => {
    if (isThere) link.connect();
    return () => link.close();
  }, [link, isThere]);
}
