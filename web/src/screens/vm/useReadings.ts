import { useEffect, useState } from "react";
import { call } from "../../api/call";
import { asProblem, type Problem } from "../../api/problem";
import type { Schemas } from "../../api/types";

export const READ_EVERY_MS = 2_000;
/** Five minutes. */
const KEPT_MAX = 151;

export interface Readings {
  readings: readonly Schemas["VmStats"][];
  problem: Problem | undefined;
}

/** The counters of a VM's disks and processors, read again and again while somebody looks. */
export function useReadings(vm: string): Readings {
  const [state, setState] = useState<Readings>({ readings: [], problem: undefined });
  useEffect(() => {
    const ending = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const read = async () => {
      try {
        const reading = await call("vm_stats", { path: { vm } }, { signal: ending.signal });
        setState(({ readings }) => ({
          readings: [...readings, reading].slice(-KEPT_MAX),
          problem: undefined,
        }));
      } catch (error) {
        if (!ending.signal.aborted)
          setState(({ readings }) => ({ readings, problem: asProblem(error) }));
      }
      if (!ending.signal.aborted) timer = setTimeout(() => void read(), READ_EVERY_MS);
    };
    void read();
    return () => {
      ending.abort();
      clearTimeout(timer);
    };
  }, [vm]);
  return state;
}
