import type { Alarm, VmSummary } from "../../api/types";

/** What is wrong with the keys of a VM, as alarms and states say. */
export type Standing = "unavailable" | "overdue" | "expiring" | "fine" | "none";

const ALARMS: readonly (readonly [kind: string, standing: Standing])[] = [
  ["key_unavailable", "unavailable"],
  ["data_keys_overdue", "overdue"],
  ["key_expiry", "expiring"],
];

/** How each VM stands, by its name; one that is not named is fine, or has no key. */
export function standingsOf(alarms: readonly Alarm[]): ReadonlyMap<string, Standing> {
  const found = new Map<string, Standing>();
  for (const [kind, standing] of ALARMS) {
    for (const alarm of alarms) {
      const { kind: of, name } = alarm.object;
      if (alarm.kind === kind && of === "vm" && !found.has(name)) found.set(name, standing);
    }
  }
  return found;
}

export function standingOf(vm: VmSummary, standings: ReadonlyMap<string, Standing>): Standing {
  if (vm.power === "key_unavailable") return "unavailable";
  return standings.get(vm.name) ?? (vm.encrypted ? "fine" : "none");
}

/** Which VMs are shown: all of it is in the address. */
export interface KeyFilter {
  text: string;
  standing: string;
  policy: string;
  folder: string;
  datastore: string;
}

const NAMES = { text: "q", standing: "standing", policy: "policy", folder: "folder" } as const;

export function filterOf(query: URLSearchParams): KeyFilter {
  const value = (name: string) => query.get(name) ?? "";
  return {
    text: value(NAMES.text),
    standing: value(NAMES.standing),
    policy: value(NAMES.policy),
    folder: value(NAMES.folder),
    datastore: value("datastore"),
  };
}

export function queryOf({ text, ...rest }: KeyFilter): Record<string, string> {
  return Object.fromEntries(
    Object.entries({ q: text, ...rest }).filter(([, value]) => value !== ""),
  );
}

/** What needs somebody comes first. */
const ORDER: readonly Standing[] = ["unavailable", "overdue", "expiring", "fine", "none"];

export function filtered(
  vms: readonly VmSummary[],
  standings: ReadonlyMap<string, Standing>,
  filter: KeyFilter,
): readonly VmSummary[] {
  const wanted = filter.text.trim().toLowerCase();
  const is = (value: string | null | undefined, choice: string) =>
    choice === "" || value === choice;
  return vms
    .map((vm) => ({ vm, standing: standingOf(vm, standings) }))
    .filter(
      ({ vm, standing }) =>
        is(standing, filter.standing) &&
        is(vm.policy, filter.policy) &&
        is(vm.folder, filter.folder) &&
        is(vm.datastore, filter.datastore) &&
        (wanted === "" || vm.name.toLowerCase().includes(wanted)),
    )
    .sort((one, other) => ORDER.indexOf(one.standing) - ORDER.indexOf(other.standing))
    .map(({ vm }) => vm);
}
