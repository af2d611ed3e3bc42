import { lazy, type ComponentType, type LazyExoticComponent } from "react";
import type { OperationId } from "../api/types";
import type { IconName } from "../ui/Icon";
import { addresses } from "./addresses";

interface Screen {
  path: string;
  component: LazyExoticComponent<ComponentType>;
}

const screen = (path: string, load: () => Promise<{ default: ComponentType }>): Screen => ({
  path,
  component: lazy(load),
});

/** Every screen, in the order in which addresses are compared with them. */
export const SCREENS: readonly Screen[] = [
  screen("/", () => import("../screens/overview/Overview")),
  screen("/vms", () => import("../screens/vms/Vms")),
  screen("/vms/new", () => import("../screens/create/CreateVm")),
  screen("/vms/:vm/console", () => import("../screens/console/ConsoleScreen")),
  screen("/vms/:vm/screen", () => import("../screens/screen/DisplayScreen")),
  screen("/vms/:vm/:tab?", () => import("../screens/vm/VmScreen")),
  screen("/hosts", () => import("../screens/hosts/Hosts")),
  screen("/hosts/:host", () => import("../screens/hosts/HostScreen")),
  screen("/balance", () => import("../screens/hosts/Balance")),
  screen("/datastores", () => import("../screens/datastores/Datastores")),
  screen("/datastores/:datastore/:tab?", () => import("../screens/datastores/DatastoreScreen")),
  screen("/disks", () => import("../screens/disks/Disks")),
  screen("/disks/:disk", () => import("../screens/disks/DiskScreen")),
  screen("/networks", () => import("../screens/networks/Networks")),
  screen("/networks/:network", () => import("../screens/networks/NetworkScreen")),
  screen("/keys/:tab?", () => import("../screens/keys/Keys")),
  screen("/policies", () => import("../screens/policies/Policies")),
  screen("/new-policy", () => import("../screens/policies/Policies")),
  screen("/policies/:policy/:tab?", () => import("../screens/policies/PolicyScreen")),
  screen("/access/:tab?/:name?", () => import("../screens/access/Access")),
  screen("/audit/:tab?", () => import("../screens/audit/Audit")),
  screen("/recipients", () => import("../screens/recipients/Recipients")),
  screen("/placement-groups", () => import("../screens/placement/Groups")),
  screen("/placement-groups/:group", () => import("../screens/placement/GroupScreen")),
  screen("/backups", () => import("../screens/backups/Backups")),
  screen("/settings", () => import("../screens/settings/Settings")),
  screen("/tasks", () => import("../screens/tasks/Tasks")),
  screen("/tasks/:task", () => import("../screens/tasks/TaskScreen")),
  screen("/alarms", () => import("../screens/alarms/Alarms")),
  screen("/events", () => import("../screens/events/Events")),
  screen("/about", () => import("../screens/about/About")),
];

export interface Entry {
  label: string;
  to: string;
  icon: IconName;
  /** Not shown to those who may not do this anywhere. */
  takes?: OperationId;
}

export interface Section {
  label: string;
  entries: readonly Entry[];
}

export const NAVIGATION: readonly Section[] = [
  {
    label: "Estate",
    entries: [
      { label: "Overview", to: addresses.overview, icon: "overview" },
      { label: "VMs", to: addresses.vms, icon: "vm" },
      { label: "Hosts", to: addresses.hosts, icon: "host", takes: "host_list" },
      { label: "Datastores", to: addresses.datastores, icon: "datastore" },
      { label: "Disks", to: addresses.disks, icon: "disk" },
      { label: "Networks", to: addresses.networks, icon: "network" },
      { label: "Placement groups", to: addresses.placementGroups, icon: "folder" },
    ],
  },
  {
    label: "Security",
    entries: [
      { label: "Keys", to: addresses.keys, icon: "key" },
      { label: "Policies", to: addresses.policies, icon: "policy" },
      { label: "Access", to: addresses.access(), icon: "people" },
      { label: "Audit", to: addresses.audit, icon: "audit", takes: "access_log" },
    ],
  },
  {
    label: "Activity",
    entries: [
      { label: "Tasks", to: addresses.tasks, icon: "task" },
      { label: "Alarms", to: addresses.alarms, icon: "alarm" },
      { label: "Events", to: addresses.events, icon: "event" },
    ],
  },
  {
    label: "Site",
    entries: [
      {
        label: "Recipients",
        to: addresses.recipients,
        icon: "out",
        takes: "recipient_list",
      },
      { label: "Backups", to: addresses.backups, icon: "copy", takes: "inventory_backup" },
      { label: "Settings", to: addresses.settings, icon: "settings" },
    ],
  },
];
