import { useSyncExternalStore } from "react";
import { useStore } from "../../lib/store";
import { density } from "../../ui/preferences";

/** As in vms.css: a row has two lines on a phone. */
const PHONE = matchMedia("(max-width: 640px)");
const ROW = 40;
const ROW_COMPACT = 32;
const ROW_ON_PHONE = 64;

function subscribe(listener: () => void): () => void {
  PHONE.addEventListener("change", listener);
  return () => PHONE.removeEventListener("change", listener);
}

export function useRowHeight(): number {
  const row = useStore(density) === "compact" ? ROW_COMPACT : ROW;
  return useSyncExternalStore(subscribe, () => (PHONE.matches ? ROW_ON_PHONE : row));
}
