import type { Schemas } from "../../api/types";

type Volume = Schemas["Volume"];

/** What a VM, or a disk that no VM has, takes of a datastore. */
export interface Use {
  /** The VM, or the disk's own name. */
  owner: string;
  isVm: boolean;
  volumes: number;
  /** What the guest sees. */
  size: number;
  /** What its files take, as far as it was read. */
  committed: number;
  /** Volumes whose space was not read yet. */
  unread: number;
}

/** The uses of a datastore, the largest first. */
export function usesOf(volumes: readonly Volume[]): readonly Use[] {
  const uses = new Map<string, Use>();
  for (const { vm_name, name, id, size_bytes, space } of volumes) {
    const isVm = typeof vm_name === "string";
    const owner = vm_name ?? name ?? id;
    const use = uses.get(owner) ?? {
      owner,
      isVm,
      volumes: 0,
      size: 0,
      committed: 0,
      unread: 0,
    };
    const committed = space?.committed_bytes;
    uses.set(owner, {
      ...use,
      volumes: use.volumes + 1,
      size: use.size + size_bytes,
      committed: use.committed + (committed ?? 0),
      unread: use.unread + (committed === undefined ? 1 : 0),
    });
  }
  return [...uses.values()].sort(
    (one, other) => other.committed - one.committed || one.owner.localeCompare(other.owner),
  );
}
