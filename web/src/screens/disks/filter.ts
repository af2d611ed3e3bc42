import type { Schemas } from "../../api/types";

type Volume = Schemas["Volume"];

/** Which disks are shown, and in which order: all of it is in the address. */
export interface DiskFilter {
  text: string;
  seal: string;
  owner: string;
  datastore: string;
  sort: string;
}

const NAMES: Readonly<Record<keyof DiskFilter, string>> = {
  text: "q",
  seal: "seal",
  owner: "owner",
  datastore: "datastore",
  sort: "sort",
};
const CRITERIA = Object.keys(NAMES) as (keyof DiskFilter)[];

export function filterOf(query: URLSearchParams): DiskFilter {
  return Object.fromEntries(
    CRITERIA.map((criterion) => [criterion, query.get(NAMES[criterion]) ?? ""]),
  ) as unknown as DiskFilter;
}

export function queryOf(filter: DiskFilter): Record<string, string> {
  const set = CRITERIA.filter((criterion) => filter[criterion] !== "");
  return Object.fromEntries(set.map((criterion) => [NAMES[criterion], filter[criterion]]));
}

/** The name that commands take: a disk's own, or VM/DISK. */
export function nameOf({ vm_name, disk, name, id }: Volume): string {
  if (typeof vm_name === "string" && typeof disk === "string") return `${vm_name}/${disk}`;
  return name ?? id;
}

/** What its files take; nothing while its host has not read it. */
export function takenBy({ space }: Volume): number | undefined {
  return space?.committed_bytes;
}

const ORDERS: Readonly<Record<string, (one: Volume, other: Volume) => number>> = {
  size: (one, other) => other.size_bytes - one.size_bytes,
  taken: (one, other) => (takenBy(other) ?? -1) - (takenBy(one) ?? -1),
};

/** The disks that match; without another order they come by their VMs. */
export function filtered(disks: readonly Volume[], filter: DiskFilter): readonly Volume[] {
  const wanted = filter.text.trim().toLowerCase();
  const found = disks.filter(
    (disk) =>
      (wanted === "" || nameOf(disk).toLowerCase().includes(wanted) || disk.id === wanted) &&
      (filter.seal === "" || disk.encrypted === (filter.seal === "sealed")) &&
      (filter.owner === "" || (typeof disk.vm === "string") === (filter.owner === "vm")) &&
      (filter.datastore === "" || disk.datastore === filter.datastore),
  );
  const order = ORDERS[filter.sort];
  return order === undefined ? found : found.sort(order);
}

/** What disks have and take together. */
export function sumsOf(disks: readonly Volume[]): { size: number; taken: number; unread: number } {
  return disks.reduce(
    ({ size, taken, unread }, disk) => ({
      size: size + disk.size_bytes,
      taken: taken + (takenBy(disk) ?? 0),
      unread: unread + (takenBy(disk) === undefined ? 1 : 0),
    }),
    { size: 0, taken: 0, unread: 0 },
  );
}
