import type { PowerState } from "../api/types";

/** Whether a VM in this state has a console and a screen. */
const HAS_THEM: Readonly<Record<PowerState, boolean>> = {
  running: true,
  paused: true,
  stopping: true,
  unknown: true,
  starting: false,
  stopped: false,
  suspended: false,
  crashed: false,
  key_unavailable: false,
};

export function isReachable(power: PowerState): boolean {
  return HAS_THEM[power];
}
