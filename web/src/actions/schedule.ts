import type { Schemas } from "../api/types";
import { commandTime, dayTime } from "../lib/times";
import { action, type Action } from "./action";

type Rule = Schemas["SnapshotRule"];

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
      ...(typeof at === "number" ? ["--at", dayTime(at)] : []),
      ...(typeof quiesce === "number" ? ["--quiesce-within", `${quiesce}s`] : []),
    ],
  );
}

export function removeRule(vm: string, all: readonly Rule[], every: number): Action {
  const rest = all.filter(({ every_s }) => every_s !== every);
  return set(`End a schedule of ${vm}`, vm, rest, ["--every", commandTime(every), "--none"]);
}
