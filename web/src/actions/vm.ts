import type { Schemas } from "../api/types";
import { commandSize } from "../lib/units";
import { action, type Action } from "./action";

interface Named {
  name: string;
}
type Limits = Schemas["IoLimits"];

export interface NewSnapshot {
  name: string;
  memory: boolean;
  quiesceS: number | undefined;
  /** Others that get it at the same instant. */
  with?: readonly Named[];
}

export function createSnapshot(
  vm: Named,
  { name, memory, quiesceS, with: others = [] }: NewSnapshot,
): Action {
  const names = others.map((each) => each.name);
  const quiesce = quiesceS === undefined ? {} : { quiesce_within_s: quiesceS };
  return action(
    `Snapshot ${name} of ${[vm.name, ...names].join(", ")}`,
    "vm_snapshot_create",
    {
      path: { vm: vm.name },
      body: {
        name,
        ...(memory ? { memory } : {}),
        ...quiesce,
        ...(names.length === 0 ? {} : { with: names }),
      },
    },
    [
      "vm",
      "snapshot",
      "create",
      vm.name,
      name,
      memory && "--memory",
      ...(quiesceS === undefined ? [] : ["--quiesce-within", `${quiesceS}s`]),
      ...names.flatMap((each) => ["--with", each]),
    ],
  );
}

export interface Reverting {
  snapshot: string;
  /** The name under which the present content is kept; nothing if it is lost. */
  keepAs: string | undefined;
  isKept: boolean;
  disksOnly: boolean;
  tpm: boolean;
}

export function revert(vm: Named, { snapshot, keepAs, isKept, disksOnly, tpm }: Reverting): Action {
  const named = keepAs === undefined || !isKept ? {} : { keep_as: keepAs };
  return action(
    `Revert ${vm.name} to ${snapshot}`,
    "vm_snapshot_revert",
    {
      path: { vm: vm.name, snapshot },
      body: {
        ...named,
        ...(isKept ? {} : { discard: true }),
        ...(disksOnly ? { disks_only: true } : {}),
        ...(tpm ? { tpm } : {}),
      },
    },
    [
      ...["vm", "snapshot", "revert", vm.name, snapshot],
      ...(keepAs === undefined || !isKept ? [] : ["--keep-as", keepAs]),
      !isKept && "--discard",
      !isKept && "--yes",
      disksOnly && "--disks-only",
      tpm && "--tpm",
    ],
  );
}

export function deleteSnapshot(vm: Named, snapshot: string): Action {
  return action(
    `Delete snapshot ${snapshot} of ${vm.name}`,
    "vm_snapshot_delete",
    { path: { vm: vm.name, snapshot } },
    ["vm", "snapshot", "delete", vm.name, snapshot, "--yes"],
  );
}

export interface Cloning {
  name: string;
  snapshot: string | undefined;
  linked: boolean;
  encrypted: boolean | undefined;
  datastore: string | undefined;
}

export function clone(
  vm: Named,
  { name, snapshot, linked, encrypted, datastore }: Cloning,
): Action {
  return action(
    `Clone ${vm.name} as ${name}`,
    "vm_clone",
    {
      path: { vm: vm.name },
      body: {
        name,
        ...(snapshot === undefined ? {} : { snapshot }),
        ...(linked ? { linked } : {}),
        ...(encrypted === undefined ? {} : { encrypted }),
        ...(datastore === undefined ? {} : { datastore }),
      },
    },
    [
      ...["vm", "clone", vm.name, name],
      ...(snapshot === undefined ? [] : ["--snapshot", snapshot]),
      linked && "--linked",
      encrypted === true && "--encrypt",
      encrypted === false && "--unencrypted",
      ...(datastore === undefined ? [] : ["--datastore", datastore]),
    ],
  );
}

export interface Rotating {
  provider: string | undefined;
  data: boolean;
}

export function rotateKey(vm: Named, { provider, data }: Rotating): Action {
  return action(
    data ? `Re-encrypt ${vm.name}` : `Rotate the key of ${vm.name}`,
    "vm_rotate_key",
    {
      path: { vm: vm.name },
      body: {
        ...(data ? { data } : {}),
        ...(provider === undefined ? {} : { key_provider: provider }),
      },
    },
    [
      "vm",
      "key",
      "rotate",
      vm.name,
      ...(provider === undefined ? [] : ["--key-provider", provider]),
      data && "--data",
    ],
  );
}

export interface Deleting {
  withVolumes: boolean;
  leaveToClones: boolean;
}

export function deleteVm(vm: Named, { withVolumes, leaveToClones }: Deleting): Action {
  return action(
    `Delete ${vm.name}`,
    "vm_delete",
    {
      path: { vm: vm.name },
      body: {
        ...(withVolumes ? { with_volumes: true } : {}),
        ...(leaveToClones ? { leave_to_clones: true } : {}),
      },
    },
    [
      "vm",
      "delete",
      vm.name,
      "--yes",
      leaveToClones && "--leave-to-clones",
      withVolumes && "--with-volumes",
    ],
  );
}

export interface Moving {
  host: string | undefined;
  datastore: string | undefined;
  pauseMs: number | undefined;
  /** Bytes of memory a second at most. */
  bandwidth?: number | undefined;
  channels?: number | undefined;
}

export function migrate(
  vm: Named,
  { host, datastore, pauseMs, bandwidth, channels }: Moving,
): Action {
  return action(
    host === undefined ? `Move ${vm.name} to another host` : `Move ${vm.name} to ${host}`,
    "vm_move_host",
    {
      path: { vm: vm.name },
      body: {
        ...(host === undefined ? {} : { host }),
        ...(datastore === undefined ? {} : { datastore }),
        ...(pauseMs === undefined ? {} : { pause_ms: pauseMs }),
        ...(bandwidth === undefined ? {} : { bytes_per_second: bandwidth }),
        ...(channels === undefined ? {} : { channels }),
      },
    },
    [
      ...["vm", "migrate", vm.name],
      ...(host === undefined ? [] : ["--to", host]),
      ...(datastore === undefined ? [] : ["--datastore", datastore]),
      ...(pauseMs === undefined ? [] : ["--pause-ms", String(pauseMs)]),
      ...(bandwidth === undefined ? [] : ["--bandwidth", commandSize(bandwidth)]),
      ...(channels === undefined ? [] : ["--channels", String(channels)]),
    ],
  );
}

export interface Tagging {
  set: readonly string[];
  remove: readonly string[];
}

export function tag(vm: Named, { set, remove }: Tagging): Action {
  return action(
    `Tag ${vm.name}`,
    "vm_set",
    { path: { vm: vm.name }, body: { tags: { set: [...set], remove: [...remove] } } },
    [
      "vm",
      "set",
      vm.name,
      ...set.flatMap((one) => ["--tag", one]),
      ...remove.flatMap((one) => ["--untag", one]),
    ],
  );
}

export interface Changes {
  name: string | undefined;
  notes: string | undefined;
  cpus: number | undefined;
  memoryBytes: number | undefined;
  /** How far both grow while it runs. */
  growth: Schemas["Growth"] | undefined;
  processor: string | undefined;
  machineType: string | undefined;
  boot: Schemas["Boot"] | undefined;
  cdrom: Schemas["Cdrom"] | undefined;
  restart: Schemas["RestartPolicy"] | undefined;
}

export const NO_CHANGES: Changes = {
  name: undefined,
  notes: undefined,
  cpus: undefined,
  memoryBytes: undefined,
  growth: undefined,
  processor: undefined,
  machineType: undefined,
  boot: undefined,
  cdrom: undefined,
  restart: undefined,
};

function growthWords({ max_cpus, max_memory_bytes }: Schemas["Growth"]): readonly string[] {
  return [
    ...(typeof max_cpus === "number" ? ["--max-cpus", String(max_cpus)] : []),
    ...(typeof max_memory_bytes === "number"
      ? ["--max-memory", commandSize(max_memory_bytes)]
      : []),
  ];
}

function bootWords(boot: Schemas["Boot"]): readonly string[] {
  if (boot.type === "disk")
    return [
      "--boot",
      boot.order === undefined || boot.order.length === 0 ? "default" : boot.order.join(","),
    ];
  return [
    ...["--kernel", boot.kernel],
    ...(typeof boot.initrd === "string" ? ["--initrd", boot.initrd] : []),
    ...(boot.arguments === undefined ? [] : ["--append", boot.arguments]),
  ];
}

/** Nothing if nothing changes. */
export function change(vm: Named, changes: Changes): Action | undefined {
  const { name, notes, cpus, memoryBytes, growth, processor, machineType, boot, cdrom, restart } =
    changes;
  const body = {
    ...(name === undefined ? {} : { name }),
    ...(notes === undefined ? {} : { notes }),
    ...(cpus === undefined ? {} : { cpus: { sockets: 1, cores: cpus, threads: 1 } }),
    ...(memoryBytes === undefined ? {} : { memory_bytes: memoryBytes }),
    ...(growth === undefined ? {} : { growth }),
    ...(processor === undefined ? {} : { processor }),
    ...(machineType === undefined ? {} : { machine_type: machineType }),
    ...(boot === undefined ? {} : { boot }),
    ...(cdrom === undefined ? {} : { cdrom }),
    ...(restart === undefined ? {} : { restart }),
  };
  if (Object.keys(body).length === 0) return undefined;
  return action(`Change ${vm.name}`, "vm_set", { path: { vm: vm.name }, body }, [
    ...["vm", "set", vm.name],
    ...(name === undefined ? [] : ["--name", name]),
    ...(notes === undefined ? [] : ["--notes", notes]),
    ...(cpus === undefined ? [] : ["--cpus", String(cpus)]),
    ...(memoryBytes === undefined ? [] : ["--memory", commandSize(memoryBytes)]),
    ...(growth === undefined ? [] : growthWords(growth)),
    ...(processor === undefined ? [] : ["--processor", processor]),
    ...(machineType === undefined ? [] : ["--machine-type", machineType]),
    ...(boot === undefined ? [] : bootWords(boot)),
    ...(cdrom === undefined ? [] : ["--cdrom", cdrom.type === "image" ? cdrom.path : "none"]),
    ...(restart === undefined ? [] : ["--restart", restart.replace("_", "-")]),
  ]);
}

function limitWords({ iops, bandwidth }: Limits): readonly string[] {
  const words = [
    ...(iops === undefined || iops === null ? [] : ["--iops", String(iops.per_second)]),
    ...(bandwidth === undefined || bandwidth === null
      ? []
      : ["--bandwidth", commandSize(bandwidth.bytes_per_second)]),
  ];
  return words.length === 0 ? ["--none"] : words;
}

export function limitVm(vm: Named, limits: Limits): Action {
  return action(`Limit ${vm.name}`, "vm_limit", { path: { vm: vm.name }, body: { limits } }, [
    "vm",
    "limit",
    vm.name,
    ...limitWords(limits),
  ]);
}

export function limitDisk(vm: Named, disk: string, limits: Limits): Action {
  return action(
    `Limit ${disk} of ${vm.name}`,
    "vm_limit_disk",
    { path: { vm: vm.name, disk }, body: { limits } },
    ["vm", "disk", "limit", vm.name, disk, ...limitWords(limits)],
  );
}

export interface NewDisk {
  size: number;
  isSwap: boolean;
  integrity: boolean;
}

export function addDisk(vm: Named, { size, isSwap, integrity }: NewDisk): Action {
  return action(
    `Add a disk to ${vm.name}`,
    "vm_add_disk",
    {
      path: { vm: vm.name },
      body: {
        size_bytes: size,
        ...(isSwap ? { kind: "swap" as const } : {}),
        ...(integrity ? { integrity } : {}),
      },
    },
    [
      ...["vm", "disk", "add", vm.name, "--size", commandSize(size)],
      isSwap && "--swap",
      integrity && "--integrity",
    ],
  );
}

export function resizeDisk(vm: Named, disk: string, size: number): Action {
  return action(
    `Grow ${disk} of ${vm.name}`,
    "vm_resize_disk",
    { path: { vm: vm.name, disk }, body: { size_bytes: size } },
    ["vm", "disk", "resize", vm.name, disk, "--size", commandSize(size)],
  );
}

/** Moves a disk with its snapshots to another datastore, as it is stored. */
export function moveDisk(vm: Named, disk: string, datastore: string): Action {
  return action(
    `Move ${disk} of ${vm.name} to ${datastore}`,
    "vm_move_disk",
    { path: { vm: vm.name, disk }, body: { datastore } },
    ["vm", "disk", "move", vm.name, disk, "--to", datastore],
  );
}

export function removeDisk(vm: Named, disk: string): Action {
  return action(`Remove ${disk} of ${vm.name}`, "vm_remove_disk", { path: { vm: vm.name, disk } }, [
    "vm",
    "disk",
    "remove",
    vm.name,
    disk,
    "--yes",
  ]);
}

export function encryptDisk(
  vm: Named,
  disk: string,
  integrity: boolean,
  provider: string | undefined,
): Action {
  return action(
    `Encrypt ${disk} of ${vm.name}`,
    "vm_encrypt_disk",
    {
      path: { vm: vm.name, disk },
      body: {
        ...(integrity ? { integrity } : {}),
        ...(provider === undefined ? {} : { key_provider: provider }),
      },
    },
    [
      "vm",
      "disk",
      "encrypt",
      vm.name,
      disk,
      integrity && "--integrity",
      ...(provider === undefined ? [] : ["--key-provider", provider]),
    ],
  );
}

export function decryptDisk(vm: Named, disk: string): Action {
  return action(
    `Decrypt ${disk} of ${vm.name}`,
    "vm_decrypt_disk",
    { path: { vm: vm.name, disk }, body: {} },
    ["vm", "disk", "decrypt", vm.name, disk],
  );
}

/** Makes a VM that is off a template, or a template a VM again. */
export function template(vm: Named, undo: boolean): Action {
  return action(
    undo ? `Make ${vm.name} a VM again` : `Make ${vm.name} a template`,
    "vm_template",
    { path: { vm: vm.name }, body: { ...(undo ? { undo } : {}) } },
    ["vm", "template", vm.name, undo && "--undo"],
  );
}

/** Moves a VM into a folder, or out of all without one. */
export function moveToFolder(vm: Named, folder: string | undefined): Action {
  return action(
    folder === undefined
      ? `Move ${vm.name} out of its folder`
      : `Move ${vm.name} into folder ${folder}`,
    "vm_move",
    { path: { vm: vm.name }, body: folder === undefined ? {} : { folder } },
    ["folder", "move", vm.name, folder ?? "--out"],
  );
}

export function registerVm(
  directory: string,
  datastore: string,
  acceptConfiguration: boolean,
): Action {
  return action(
    `Register ${directory} of ${datastore}`,
    "vm_register",
    {
      body: {
        directory,
        datastore,
        ...(acceptConfiguration ? { accept_configuration: true } : {}),
      },
    },
    [
      ...["vm", "register", directory, "--datastore", datastore],
      acceptConfiguration && "--accept-configuration",
    ],
  );
}

/** Removes a VM from the inventory; its files stay. */
export function unregisterVm(vm: Named): Action {
  return action(`Unregister ${vm.name}`, "vm_unregister", { path: { vm: vm.name }, body: {} }, [
    ...["vm", "unregister", vm.name],
  ]);
}
