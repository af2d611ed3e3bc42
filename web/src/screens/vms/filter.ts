import type { PowerState, VmSummary } from "../../api/types";
import { sealOf, type Seal } from "../../ui/Status";

/** Which VMs are shown, and in which order: all of it is in the address. */
export interface Filter {
  text: string;
  power: string;
  seal: string;
  host: string;
  datastore: string;
  policy: string;
  folder: string;
  sort: string;
}

export type Criterion = keyof Filter;

const NAMES: Readonly<Record<Criterion, string>> = {
  text: "q",
  power: "power",
  seal: "seal",
  host: "host",
  datastore: "datastore",
  policy: "policy",
  folder: "folder",
  sort: "sort",
};
const CRITERIA = Object.keys(NAMES) as Criterion[];

/** Stands for VMs that have none. */
export const NONE = "-";

export function filterOf(query: URLSearchParams): Filter {
  return Object.fromEntries(
    CRITERIA.map((criterion) => [criterion, query.get(NAMES[criterion]) ?? ""]),
  ) as unknown as Filter;
}

export function queryOf(filter: Filter): Record<string, string> {
  const present = CRITERIA.filter((criterion) => filter[criterion] !== "");
  return Object.fromEntries(present.map((criterion) => [NAMES[criterion], filter[criterion]]));
}

export function isFiltering(filter: Filter): boolean {
  return CRITERIA.some((criterion) => criterion !== "sort" && filter[criterion] !== "");
}

function isOf(wanted: string, value: string | null | undefined): boolean {
  return wanted === "" || (value ?? NONE) === wanted;
}

function hasText(wanted: string, { name, id, tags = [] }: VmSummary): boolean {
  return (
    name.toLowerCase().includes(wanted) ||
    id === wanted ||
    tags.some((tag) => tag.toLowerCase().includes(wanted))
  );
}

const ORDERS: Readonly<Record<string, (one: VmSummary, other: VmSummary) => number>> = {
  power: (one, other) => rank(one.power) - rank(other.power),
  seal: (one, other) => sealOf(one).localeCompare(sealOf(other)),
  host: (one, other) => (one.host ?? "").localeCompare(other.host ?? ""),
  cpus: (one, other) => one.cpus - other.cpus,
  memory: (one, other) => one.memory_bytes - other.memory_bytes,
  disks: (one, other) => one.disk_bytes - other.disk_bytes,
  policy: (one, other) => (one.policy ?? "").localeCompare(other.policy ?? ""),
  tags: (one, other) => (one.tags?.[0] ?? "").localeCompare(other.tags?.[0] ?? ""),
};

/** What needs somebody comes first. */
const POWERS: readonly PowerState[] = [
  "crashed",
  "key_unavailable",
  "unknown",
  "starting",
  "stopping",
  "running",
  "paused",
  "suspended",
  "stopped",
];

function rank(power: PowerState): number {
  return POWERS.indexOf(power);
}

/** The VMs that match; they come in the order of their names. */
export function filtered(vms: readonly VmSummary[], filter: Filter): readonly VmSummary[] {
  const wanted = filter.text.trim().toLowerCase();
  const found = vms.filter(
    (vm) =>
      isOf(filter.power, vm.power) &&
      isOf(filter.seal, sealOf(vm) satisfies Seal) &&
      isOf(filter.host, vm.host) &&
      isOf(filter.datastore, vm.datastore) &&
      isOf(filter.policy, vm.policy) &&
      isOf(filter.folder, vm.folder) &&
      (wanted === "" || hasText(wanted, vm)),
  );
  const isDown = filter.sort.startsWith("-");
  const order = ORDERS[filter.sort.replace(/^-/, "")];
  if (order !== undefined) found.sort(order);
  return isDown ? found.reverse() : found;
}

/** The values that VMs have, for a choice. */
export function valuesOf(
  vms: readonly VmSummary[],
  value: (vm: VmSummary) => string | null | undefined,
): readonly string[] {
  const found = new Set(vms.map((vm) => value(vm) ?? NONE));
  return [...found].sort();
}
