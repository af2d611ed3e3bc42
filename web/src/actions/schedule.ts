import type { Schemas } from "../api/types";
import { action, type Action } from "./action";

type Rule = Schemas["SnapshotRule"];

/** A period as the command line takes it: 1d, 6h, 5m. */
export function commandTime(seconds: number): string {
  if (seconds % 86_400 === 0) return `${seconds / 86_400}d`;
  if (seconds % 3_600 === 0) return `${seconds / 3_600}h`;
  return seconds % 60 === 0 ? `${seconds / 60}m` : `${seconds}s`;
}

function clock(minutes: number): string {
  const two = (value: number) => String(value).padStart(2, "0");
  return `${two(Math.floor(minutes / 60))}:${two(minutes % 60)}`;
}

function set(label: string, vm: string, rules: readonly Rule[], words: readonly string[]): Action {
  return action(label, "vm_snapshot_schedule_set", { path: { vm }, body: { rules: [...rules] } }, [
    "vm",
    "snapshot",
    "schedule",
    vm,
    ...words,
  ]);
}

/** Gives a VM a rule beside its others; one of the same period is replaced. */
export function addRule(vm: string, others: readonly Rule[], rule: Rule): Action {
  const kept = others.filter(({ every_s }) => every_s !== rule.every_s);
  const { every_s, keep, at_minutes: at, quiesce_within_s: quiesce } = rule;
  return set(
    `Schedule snapshots of ${vm}`,
    vm,
    [...kept, rule],
    [
      ...["--every", commandTime(every_s), "--keep", String(keep)],
      ...(typeof at === "number" ? ["--at", clock(at)] : []),
      ...(typeof quiesce === "number" ? ["--quiesce-within", `${quiesce}s`] : []),
    ],
  );
}

export function removeRule(vm: string, all: readonly Rule[], every: number): Action {
  const rest = all.filter(({ every_s }) => every_s !== every);
  return set(`End a schedule of ${vm}`, vm, rest, ["--every", commandTime(every), "--none"]);
}

/** How long a VM's data keys are used; without a number, as long as nobody renews them. */
export function setCryptoperiod(vm: string, days: number | undefined): Action {
  return action(
    `Set the cryptoperiod of ${vm}`,
    "vm_cryptoperiod_set",
    {
      path: { vm },
      body: { cryptoperiod: days === undefined ? null : { every_s: days * 86_400 } },
    },
    ["vm", "set", vm, "--rekey-every", days === undefined ? "never" : `${days}d`],
  );
}
