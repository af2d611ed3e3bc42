const part = encodeURIComponent;

/** The address of every screen. */
export const addresses = {
  overview: "/",
  vms: "/vms",
  newVm: "/vms/new",
  vm: (vm: string, tab = "") => `/vms/${part(vm)}${tab === "" ? "" : `/${tab}`}`,
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
  return kind === "vm" ? addresses.vm(name) : undefined;
}
