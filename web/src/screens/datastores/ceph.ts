import type { CephWay } from "../../actions/datastore";
import { limitsOf, textFault } from "../../api/limits";
import { optional } from "../../lib/words";

/** A Ceph client as it is typed. */
export interface CephDraft {
  user: string;
  conf: string;
  keyring: string;
}

export const noClient: CephDraft = { user: "", conf: "", keyring: "" };

export function userFault(user: string): string | undefined {
  return textFault(limitsOf("CephAccess", "user"), user) === undefined
    ? undefined
    : "A Ceph user of this host, with its type, as in client.host1.";
}

function pathFault(field: "conf" | "keyring", path: string): string | undefined {
  return path === "" ? undefined : textFault(limitsOf("CephAccess", field), path);
}

export function cephFaults({ user, conf, keyring }: CephDraft) {
  return {
    user: userFault(user),
    conf: pathFault("conf", conf),
    keyring: pathFault("keyring", keyring),
  };
}

/** The client; nothing while something is wrong with it. */
export function wayOf(draft: CephDraft): CephWay | undefined {
  const faults = cephFaults(draft);
  if (Object.values(faults).some((fault) => fault !== undefined)) return undefined;
  return {
    user: draft.user,
    conf: optional(draft.conf),
    keyring: optional(draft.keyring),
  };
}
