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
];
