import { useSyncExternalStore } from "react";

/** As in vms.css: a row has two lines on a phone. */
const PHONE = matchMedia("(max-width: 640px)");
const ROW = 40;
const ROW_ON_PHONE = 64;

function subscribe(listener: () => void): () => void {
  PHONE.addEventListener("change", listener);
  return () => PHONE.removeEventListener("change", listener);
}

export function useRowHeight(): number {
  return useSyncExternalStore(subscribe, () => (PHONE.matches ? ROW_ON_PHONE : ROW));
}
