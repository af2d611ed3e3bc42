import type { Schemas } from "../api/types";
import { commandSize } from "../lib/units";
import { commandTime } from "../lib/times";
import { action, type Action } from "./action";

type Severity = Schemas["Severity"];

export function addMail(name: string, address: string, severity: Severity): Action {
  return action(
    `Add recipient ${name}`,
    "recipient_create",
    { body: { name, severity, to: { type: "mail", address } } },
    ["recipient", "add", name, "--mail", address, "--severity", severity],
  );
}

/** A part of a webhook's address is often a secret of its owner. */
export function addWebhook(
  name: string,
  url: string,
  severity: Severity,
  authorities: string | undefined,
): Action {
  return action(
    `Add recipient ${name}`,
    "recipient_create",
    {
      body: {
        name,
        severity,
        to: { type: "webhook", url, ...(authorities === undefined ? {} : { authorities }) },
      },
    },
    [
      ...["recipient", "add", name, "--webhook-file", `${name}.url`, "--severity", severity],
      ...(authorities === undefined ? [] : ["--authorities", `${name}.pem`]),
    ],
    ["url"],
  );
}

export function testRecipient(name: string): Action {
  return action(`Send ${name} a test`, "recipient_test", { path: { recipient: name }, body: {} }, [
    "recipient",
    "test",
    name,
  ]);
}

export function removeRecipient(name: string): Action {
  return action(`Remove recipient ${name}`, "recipient_delete", { path: { recipient: name } }, [
    ...["recipient", "remove", name],
  ]);
}

export function createGroup(name: string, keep: Schemas["Keep"]): Action {
  return action(
    `Create placement group ${name}`,
    "placement_group_create",
    { body: { name, keep } },
    ["placement-group", "create", name, `--${keep}`],
  );
}

export function joinGroup(group: string, vms: readonly string[]): Action {
  return action(
    `Add ${vms.join(", ")} to ${group}`,
    "placement_group_set",
    { path: { group }, body: { add: [...vms] } },
    ["placement-group", "add", group, ...vms],
  );
}

export function leaveGroup(group: string, vms: readonly string[]): Action {
  return action(
    `Take ${vms.join(", ")} from ${group}`,
    "placement_group_set",
    { path: { group }, body: { remove: [...vms] } },
    ["placement-group", "remove", group, ...vms],
  );
}

export function deleteGroup(group: string): Action {
  return action(`Delete placement group ${group}`, "placement_group_delete", { path: { group } }, [
    ...["placement-group", "delete", group],
  ]);
}

export function backUpInventory(withoutAccessLog: boolean): Action {
  return action(
    "Back the inventory up",
    "inventory_backup",
    { body: withoutAccessLog ? { without_access_log: true } : {} },
    ["inventory", "backup", withoutAccessLog && "--without-access-log"],
  );
}

export interface Retention {
  keepS: number | undefined;
  roomBytes: number | undefined;
}

export function setRetention({ keepS, roomBytes }: Retention): Action {
  return action(
    "Set the retention of the access log",
    "access_log_retention_set",
    {
      body: {
        ...(keepS === undefined ? {} : { keep_s: keepS }),
        ...(roomBytes === undefined ? {} : { room_bytes: roomBytes }),
      },
    },
    [
      ...["access", "retention"],
      ...(keepS === undefined ? [] : ["--keep", commandTime(keepS)]),
      ...(roomBytes === undefined ? [] : ["--room", commandSize(roomBytes)]),
    ],
  );
}
