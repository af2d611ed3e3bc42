import { useState } from "react";
import { useLocation } from "wouter";
import { commandLine } from "../../actions/action";
import { misfit, power, type PowerVerb } from "../../actions/power";
import { useRun } from "../../actions/run";
import { template, unregisterVm } from "../../actions/vm";
import { ActionDialog } from "../../actions/ActionDialog";
import type { Vm } from "../../api/types";
import { addresses } from "../../app/addresses";
import { Button, ButtonLink } from "../../ui/Button";
import type { IconName } from "../../ui/Icon";
import { Menu, type Choice } from "../../ui/Menu";
import { powerWord } from "../../ui/Status";
import { CloneDialog } from "./dialogs/CloneDialog";
import { DeleteDialog } from "./dialogs/DeleteDialog";
import { EditDialog } from "./dialogs/EditDialog";
import { FolderDialog } from "./dialogs/FolderDialog";
import { HardwareDialog } from "./dialogs/HardwareDialog";
import { LimitDialog } from "./dialogs/LimitDialog";
import { MigrateDialog } from "./dialogs/MigrateDialog";
import { RotateDialog } from "./dialogs/RotateDialog";
import { SnapshotDialog } from "./dialogs/SnapshotDialog";
import { StopDialog } from "./dialogs/StopDialog";
import { TagDialog } from "./dialogs/TagDialog";
import { useVmRefusal } from "./useVmRefusal";

type Asked =
  | "stop"
  | "restart"
  | "snapshot"
  | "clone"
  | "migrate"
  | "rotate"
  | "limit"
  | "edit"
  | "hardware"
  | "folder"
  | "tag"
  | "unregister"
  | "delete";

/** What can be done with a VM: what is likely next as a button, all else in a list. */
export function VmActions({ vm }: { vm: Vm }) {
  const run = useRun();
  const [, go] = useLocation();
  const [asked, ask] = useState<Asked>();
  const close = () => ask(undefined);
  const why = useVmRefusal(vm);
  const whyNot = (verb: PowerVerb) => misfit(verb, vm, powerWord(vm.power)) ?? why(`vm_${verb}`);

  const now = (verb: Exclude<PowerVerb, "stop" | "restart">, label: string): Choice => ({
    id: verb,
    label,
    hint: commandLine(power[verb](vm)),
    refusal: whyNot(verb),
    choose: () => void run([power[verb](vm)]),
  });
  const open = (
    id: Asked,
    label: string,
    refused: string | undefined,
    isDangerous = false,
  ): Choice => ({
    id,
    label: `${label}\u2026`,
    refusal: refused,
    isDangerous,
    choose: () => ask(id),
  });
  const look = (what: "console" | "screen"): Choice => ({
    id: `look-${what}`,
    label: `Look at its ${what} only`,
    hint: `strongroom vm ${what} ${vm.name} --read-only`,
    refusal: why("vm_ticket"),
    choose: () => go(addresses.guest(vm.name, what, true)),
  });
  const isTemplate = vm.template === true;
  const templating = template(vm, isTemplate);
  const choices = [
    now("start", "Start"),
    now("resume", "Resume"),
    open("restart", "Restart", whyNot("restart")),
    now("pause", "Pause"),
    now("suspend", "Suspend"),
    now("reset", "Reset"),
    look("console"),
    ...(vm.vnc === true ? [look("screen")] : []),
    open("migrate", "Move to another host", why("vm_move_host")),
    open("clone", "Clone", why("vm_clone")),
    {
      id: "template",
      label: isTemplate ? "Make it a VM again" : "Make it a template",
      hint: commandLine(templating),
      refusal: vm.power === "stopped" ? why("vm_template") : "It has to be off.",
      choose: () => void run([templating]),
    },
    open("edit", "Change", why("vm_set")),
    open(
      "hardware",
      "Change its hardware and boot",
      vm.power === "stopped" ? why("vm_set") : "It has to be off.",
    ),
    open("folder", "Move to a folder", why("vm_move")),
    open("tag", "Tag", why("vm_set")),
    open("limit", "Limit its disks", why("vm_limit")),
    open(
      "rotate",
      "Rotate its key",
      vm.encrypted ? why("vm_rotate_key") : "It has no key: it is not encrypted.",
    ),
    open(
      "unregister",
      "Unregister",
      vm.power === "stopped" ? why("vm_unregister") : "It has to be off.",
    ),
    open("delete", "Delete", why("vm_delete"), true),
  ];
  const first: PowerVerb =
    vm.power === "paused"
      ? "resume"
      : vm.power === "running" || vm.power === "stopping"
        ? "stop"
        : "start";

  return (
    <>
      {isTemplate ? (
        <Button look="primary" icon="copy" why={why("vm_clone")} onPress={() => ask("clone")}>
          Clone&hellip;
        </Button>
      ) : first === "stop" ? (
        <Button icon="stop" why={whyNot("stop")} onPress={() => ask("stop")}>
          Stop&hellip;
        </Button>
      ) : (
        <Button
          look="primary"
          icon="play"
          why={whyNot(first)}
          aria-description={commandLine(power[first](vm))}
          onPress={() => void run([power[first](vm)])}
        >
          {first === "start" ? "Start" : "Resume"}
        </Button>
      )}
      <Button icon="snapshot" why={why("vm_snapshot_create")} onPress={() => ask("snapshot")}>
        Snapshot&hellip;
      </Button>
      <GuestButton to={addresses.guest(vm.name, "console")} icon="console" why={why("vm_ticket")}>
        Console
      </GuestButton>
      {vm.vnc === true ? (
        <GuestButton to={addresses.guest(vm.name, "screen")} icon="vm" why={why("vm_ticket")}>
          Screen
        </GuestButton>
      ) : null}
      <Menu label={`More for ${vm.name}`} choices={choices}>
        More
      </Menu>
      {asked === "stop" || asked === "restart" ? (
        <StopDialog vms={[vm]} verb={asked} onClose={close} />
      ) : null}
      {asked === "snapshot" ? <SnapshotDialog vms={[vm]} onClose={close} /> : null}
      {asked === "clone" ? <CloneDialog vm={vm} onClose={close} /> : null}
      {asked === "migrate" ? <MigrateDialog vm={vm} onClose={close} /> : null}
      {asked === "rotate" ? <RotateDialog vms={[vm]} onClose={close} /> : null}
      {asked === "limit" ? <LimitDialog vm={vm} onClose={close} /> : null}
      {asked === "edit" ? <EditDialog vm={vm} onClose={close} /> : null}
      {asked === "hardware" ? <HardwareDialog vm={vm} onClose={close} /> : null}
      {asked === "folder" ? <FolderDialog vms={[vm]} onClose={close} /> : null}
      {asked === "unregister" ? (
        <ActionDialog
          title={`Unregister ${vm.name}`}
          submit="Unregister"
          actions={[unregisterVm(vm)]}
          onClose={close}
          onDone={() => go(addresses.vms)}
        >
          <p>
            The inventory forgets it. Its files stay on {vm.datastore}, whose contents list it from
            then on, to be registered again.
          </p>
        </ActionDialog>
      ) : null}
      {asked === "tag" ? <TagDialog vms={[vm]} onClose={close} /> : null}
      {asked === "delete" ? (
        <DeleteDialog vms={[vm]} onClose={close} onDone={() => go(addresses.vms)} />
      ) : null}
    </>
  );
}

/** The way to a guest, for those who may have it. */
function GuestButton({
  to,
  icon,
  why,
  children,
}: {
  to: string;
  icon: IconName;
  why: string | undefined;
  children: string;
}) {
  return why === undefined ? (
    <ButtonLink to={to} icon={icon}>
      {children}
    </ButtonLink>
  ) : (
    <Button icon={icon} why={why}>
      {children}
    </Button>
  );
}
