const part = encodeURIComponent;

/** The address of every screen. */
export const addresses = {
  overview: "/",
  vms: "/vms",
  newVm: "/vms/new",
  vm: (vm: string, tab = "") => `/vms/${part(vm)}${tab === "" ? "" : `/${tab}`}`,
  /** A guest's console or screen; `isLook`: nothing that is typed reaches the guest. */
  guest: (vm: string, what: "console" | "screen", isLook = false) =>
    `/vms/${part(vm)}/${what}${isLook ? "?look=only" : ""}`,
  hosts: "/hosts",
  host: (host: string) => `/hosts/${part(host)}`,
  balance: "/balance",
  datastores: "/datastores",
  datastore: (datastore: string, tab = "") =>
    `/datastores/${part(datastore)}${tab === "" ? "" : `/${tab}`}`,
  disks: "/disks",
  disk: (disk: string) => `/disks/${part(disk)}`,
  networks: "/networks",
  network: (network: string) => `/networks/${part(network)}`,
  placementGroups: "/placement-groups",
  placementGroup: (group: string) => `/placement-groups/${part(group)}`,
  keys: "/keys",
  keysOfVms: "/keys/vms",
  policies: "/policies",
  newPolicy: "/new-policy",
  policy: (policy: string, tab = "") => `/policies/${part(policy)}${tab === "" ? "" : `/${tab}`}`,
  access: (tab = "") => (tab === "" ? "/access" : `/access/${tab}`),
  readersOf: (vm: string) => `/access/review?vm=${part(vm)}`,
  user: (user: string) => `/access/users/${part(user)}`,
  audit: "/audit",
  integrity: "/audit/integrity",
  recipients: "/recipients",
  backups: "/backups",
  settings: "/settings",
  tasks: "/tasks",
  task: (task: string) => `/tasks/${part(task)}`,
  alarms: "/alarms",
  events: "/events",
  about: "/about",
} as const;

/** The screen of an object, if it has one. */
export function addressOfObject({
  kind,
  name,
}: {
  kind: string;
  name: string;
}): string | undefined {
  switch (kind) {
    case "vm":
      return addresses.vm(name);
    case "host":
      return addresses.host(name);
    case "volume":
      return addresses.disk(name);
    case "datastore":
      return addresses.datastore(name);
    case "key_provider":
      return addresses.keys;
    case "recipient":
      return addresses.recipients;
    case "placement_group":
      return addresses.placementGroup(name);
    case "policy":
      return addresses.policy(name);
    case "network":
      return addresses.network(name);
    default:
      return undefined;
  }
}
