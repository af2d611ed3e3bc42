import type { Privilege, Schemas } from "../../api/types";

/** What each privilege permits. */
export const PERMITS: Readonly<Record<Privilege, string>> = {
  view: "See objects, their states, tasks and events.",
  power: "Start, stop, pause, suspend and reset VMs.",
  console: "Open consoles and screens.",
  export: "Read dumps, and copies of disks in plain text.",
  backup: "Read maps of volumes and check them, without content; back the inventory up, sealed.",
  create: "Make VMs and volumes.",
  configure: "Change VMs and volumes; set hosts in maintenance.",
  migrate: "Move VMs and volumes to other hosts; with configure and power, evacuate hosts.",
  guest_control:
    "Decide what a guest runs: kernel, boot order, CD-ROM, network cards, screen, images, reverts.",
  snapshot: "Make and delete snapshots.",
  delete: "Delete VMs, volumes and dumps.",
  access: "Reach the content of encrypted VMs, with the privilege for the way there.",
  add_disk: "Add disks to encrypted VMs.",
  clone: "Clone encrypted VMs and volumes.",
  decrypt: "Decrypt disks, and make clones in plain text of what is encrypted.",
  encrypt: "Encrypt disks, and make encrypted clones of what is in plain text.",
  encrypt_new: "Make encrypted VMs and volumes.",
  recrypt: "Move encrypted VMs to other keys, and set how long their data keys are used.",
  manage_keys: "Choose an existing key for a new VM.",
  manage_policies: "Make and delete policies.",
  register_vm: "Register the VMs of a datastore.",
  register_host: "Let machines join as hosts, which get the keys of the VMs on them; remove them.",
  datastores: "Add, remove and scan datastores.",
  networks: "Make and delete networks, and say on which bridges hosts have them.",
  connect: "Connect network cards to networks; for the site, to bridges and tap devices.",
  roles: "Make users, roles, folders and grants, and move VMs between folders.",
  audit: "Read the access log, and who may do what.",
  recipients: "Decide who outside is sent the site\u2019s alarms.",
};

export const PRIVILEGES = Object.keys(PERMITS) as readonly Privilege[];

/** Where a role counts, in words. */
export function scopeInWords(scope: Schemas["Scope"]): string {
  switch (scope.type) {
    case "site":
      return "the whole site";
    case "folder":
      return `folder ${scope.folder}`;
    case "vm":
      return `VM ${scope.vm}`;
    case "datastore":
      return `datastore ${scope.datastore}`;
    case "network":
      return `network ${scope.network}`;
  }
}
