import type { Schemas } from "../api/types";
import { action, type Action } from "./action";
import { commandTime } from "./policy";

const DAY_S = 86_400;

/** A time of the day as the command line takes it: 01:30. */
export function dayTime(minutes: number): string {
  const part = (value: number) => String(value).padStart(2, "0");
  return `${part(Math.floor(minutes / 60))}:${part(minutes % 60)}`;
}

/** The minutes after midnight; nothing if it is no time of the day. */
export function minutesOf(text: string): number | undefined {
  const [, hours, minutes] = /^([01]?[0-9]|2[0-3]):([0-5][0-9])$/.exec(text.trim()) ?? [];
  return hours === undefined ? undefined : Number(hours) * 60 + Number(minutes);
}

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
