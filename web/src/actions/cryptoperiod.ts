import type { Schemas } from "../api/types";
import { commandTime, dayTime } from "../lib/times";
import { action, type Action } from "./action";

const DAY_S = 86_400;

export function daysInSeconds(days: number): number {
  return days * DAY_S;
}

/** Sets how long a VM's data keys are used; without a period they are renewed on request only. */
export function setCryptoperiod(
  vm: { name: string },
  period: Schemas["Cryptoperiod"] | undefined,
): Action {
  const window = period?.window;
  return action(
    period === undefined
      ? `Renew the data keys of ${vm.name} on request only`
      : `Renew the data keys of ${vm.name} every ${commandTime(period.every_s)}`,
    "vm_cryptoperiod_set",
    { path: { vm: vm.name }, body: { cryptoperiod: period ?? null } },
    [
      ...["vm", "set", vm.name, "--rekey-every"],
      period === undefined ? "never" : commandTime(period.every_s),
      ...(window === undefined || window === null
        ? []
        : ["--rekey-window", `${dayTime(window.from_minutes)}-${dayTime(window.to_minutes)}`]),
    ],
  );
}
