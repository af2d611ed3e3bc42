import { useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { useStore } from "../lib/store";
import { reloadVms, vmChanged, vms, type Estate } from "./estate";
import { Refresher } from "./refresh";
import { becomeConnected, live, type Live } from "./state";
import { follow } from "./tabs";

/** Keeps what is shown up to date while somebody is signed in, from the event `after` on. */
export function useEvents(after: number | undefined): void {
  const cache = useQueryClient();
  useEffect(() => {
    const refresher = new Refresher(cache);
    return follow(after, {
      event: (event) => {
        refresher.event(event);
        vmChanged(event);
      },
      gap: () => {
        refresher.everything();
        reloadVms();
      },
      connected: becomeConnected,
    });
  }, [cache, after]);
}

export function useLiveState(): Live {
  return useStore(live);
}

export function useEstate(): Estate {
  return useStore(vms);
}
