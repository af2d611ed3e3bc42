// What the tests of all screens show: an estate, and the address of each screen.

const MIB = 1024 ** 2;
const TASK_WITHIN_S = 60;

/** @typedef {import("./serving.mjs").Serving} Serving */

/**
 * Changes a disk that no VM has, and waits for it.
 * @param {Serving} serving
 * @param {unknown} change
 */
export async function changesDisk(serving, change) {
  const { changes } = await serving.asks("POST", "/v1/volumes/changes", { changes: [change] });
  const [{ task, error }] = changes;
  if (error) throw new Error(`${JSON.stringify(change)}: ${JSON.stringify(error)}`);
  const ended = await serving.asks("GET", `/v1/tasks/${task.id}?wait_s=${TASK_WITHIN_S}`);
  if (ended.state !== "done") throw new Error(JSON.stringify(ended));
}

/**
 * Makes what the screens show: VMs, one of which runs, and one of each other object.
 * @param {Serving} serving
 */
export async function makeEstate(serving) {
  const small = { memory_bytes: 64 * MIB, disks: [{ size_bytes: 8 * MIB }], nics: [] };
  for (const name of ["alpha", "beta", "gamma"])
    await serving.does("POST", "/v1/vms", { ...small, name });
  await serving.does("POST", "/v1/vms", {
    ...small,
    name: "plain",
    encryption: { encrypted: false },
  });
  for (const name of ["first", "second"])
    await serving.does("POST", "/v1/vms/alpha/snapshots", { name });
  await serving.does("POST", "/v1/vms/alpha/start");
  await changesDisk(serving, { change: "create", name: "data1", size_bytes: 8 * MIB });
  await changesDisk(serving, { change: "snapshot", volume: "data1", name: "monday" });
  await serving.asks("POST", "/v1/policies", {
    name: "gold",
    rules: { encryption_required: true, snapshots: [{ every_s: 86_400, keep: 7 }] },
  });
  await serving.does("POST", "/v1/networks", { name: "lan", vlan: 99 });
  await serving.asks("POST", "/v1/placement-groups", { name: "db", keep: "apart" });
  await serving.asks("POST", "/v1/folders", { name: "tenant1" });
  await serving.asks("POST", "/v1/users", { name: "grace", password: "correct horse battery" });
}

export const SCREENS = {
  overview: "/",
  vms: "/vms",
  "vms-filtered": "/vms?q=a&power=stopped",
  "vms-none": "/vms?q=nothing-has-this",
  create: "/vms/new",
  vm: "/vms/alpha",
  "vm-disks": "/vms/alpha/disks",
  "vm-snapshots": "/vms/alpha/snapshots",
  "vm-keys": "/vms/alpha/keys",
  "vm-performance": "/vms/alpha/performance",
  "vm-dumps": "/vms/alpha/dumps",
  "vm-activity": "/vms/alpha/activity",
  "vm-clear": "/vms/plain/keys",
  hosts: "/hosts",
  host: "/hosts/hall1",
  balance: "/balance",
  disks: "/disks",
  "disks-none": "/disks?owner=none&q=nothing-has-this",
  disk: "/disks/data1",
  datastores: "/datastores",
  datastore: "/datastores/vms",
  "datastore-contents": "/datastores/vms/contents",
  networks: "/networks",
  network: "/networks/lan",
  "placement-groups": "/placement-groups",
  "placement-group": "/placement-groups/db",
  keys: "/keys",
  "keys-of-vms": "/keys/vms",
  policies: "/policies",
  policy: "/policies/gold",
  "policy-new": "/new-policy",
  access: "/access",
  user: "/access/users/grace",
  "access-providers": "/access/providers",
  "access-roles": "/access/roles",
  "access-tokens": "/access/tokens",
  "access-sessions": "/access/sessions",
  "access-folders": "/access/folders",
  "access-emergency": "/access/emergency",
  "access-review": "/access/review",
  "access-explain": "/access/explain",
  audit: "/audit",
  integrity: "/audit/integrity",
  recipients: "/recipients",
  backups: "/backups",
  settings: "/settings",
  tasks: "/tasks",
  alarms: "/alarms",
  events: "/events",
  about: "/about",
  nowhere: "/nothing-is-here",
};
