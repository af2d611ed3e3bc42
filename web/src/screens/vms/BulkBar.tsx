import { useState } from "react";
import { commandLine } from "../../actions/action";
import { misfit, power, type PowerVerb } from "../../actions/power";
import { useRun } from "../../actions/run";
import type { OperationId, VmSummary } from "../../api/types";
import { count, plural } from "../../lib/units";
import { useRefusal } from "../../session/useMe";
import { Button } from "../../ui/Button";
import { Menu, type Choice } from "../../ui/Menu";
import { powerWord } from "../../ui/Status";
import { DeleteDialog } from "../vm/dialogs/DeleteDialog";
import { FolderDialog } from "../vm/dialogs/FolderDialog";
import { RotateDialog } from "../vm/dialogs/RotateDialog";
import { SnapshotDialog } from "../vm/dialogs/SnapshotDialog";
import { StartDialog } from "../vm/dialogs/StartDialog";
import { StopDialog } from "../vm/dialogs/StopDialog";
import { TagDialog } from "../vm/dialogs/TagDialog";

/** As many are started without being asked again. */
const AT_ONCE_MAX = 10;

type Asked =
  "start" | "resume" | "stop" | "restart" | "snapshot" | "rotate" | "folder" | "tag" | "delete";

/** What can be done with all selected VMs; those that do not fit are left out. */
export function BulkBar({ vms, onClear }: { vms: readonly VmSummary[]; onClear: () => void }) {
  const refusal = useRefusal();
  const run = useRun();
  const [asked, ask] = useState<Asked>();
  const close = () => ask(undefined);
  const fits = (verb: PowerVerb) =>
    vms.filter(
      (vm) =>
        misfit(verb, vm, powerWord(vm.power)) === undefined &&
        refusal(`vm_${verb}`, { vm }) === undefined,
    );
  const may = (operation: OperationId) =>
    vms.filter((vm) => refusal(operation, { vm }) === undefined);
  const [starting, resuming, stopping, restarting] = [
    fits("start"),
    fits("resume"),
    fits("stop"),
    fits("restart"),
  ];

  const begin = (verb: "start" | "resume", of: readonly VmSummary[]) => {
    if (of.length > AT_ONCE_MAX) ask(verb);
    else void run(of.map((vm) => power[verb](vm)));
  };

  /** Why none of them is left: a right that is missing, or what they are. */
  const whyNone = (operation: OperationId, of: readonly VmSummary[]) => {
    if (of.length > 0) return undefined;
    const refused = vms.map((vm) => refusal(operation, { vm })).find((why) => why !== undefined);
    return refused ?? "None of them is in a state for it.";
  };

  const choice = (
    id: string,
    label: string,
    operation: OperationId,
    of: readonly VmSummary[],
    choose: () => void,
    isDangerous = false,
  ): Choice => ({
    id,
    label,
    ...(of.length === 0
      ? { refusal: whyNone(operation, of) }
      : of.length < vms.length
        ? { hint: `${plural(of.length, "VM")} of ${vms.length}` }
        : {}),
    isDangerous,
    choose,
  });
  const choices = [
    choice("resume", "Resume", "vm_resume", resuming, () => begin("resume", resuming)),
    choice("restart", "Restart\u2026", "vm_restart", restarting, () => ask("restart")),
    choice("snapshot", "Snapshot\u2026", "vm_snapshot_create", may("vm_snapshot_create"), () =>
      ask("snapshot"),
    ),
    choice(
      "rotate",
      "Rotate keys\u2026",
      "vm_rotate_key",
      may("vm_rotate_key").filter(({ encrypted }) => encrypted),
      () => ask("rotate"),
    ),
    choice("folder", "Move to a folder\u2026", "vm_move", may("vm_move"), () => ask("folder")),
    choice("tag", "Tag\u2026", "vm_set", may("vm_set"), () => ask("tag")),
    choice("delete", "Delete\u2026", "vm_delete", may("vm_delete"), () => ask("delete"), true),
  ];
  return (
    <div className="bulk" role="toolbar" aria-label="Selected VMs">
      <span className="bulk-count number" role="status">
        {plural(vms.length, "VM")} selected
      </span>
      <Button
        icon="play"
        why={whyNone("vm_start", starting)}
        onPress={() => begin("start", starting)}
        {...(starting[0] === undefined
          ? {}
          : { "aria-description": commandLine(power.start(starting[0])) })}
      >
        Start {count(starting.length)}
      </Button>
      <Button icon="stop" why={whyNone("vm_stop", stopping)} onPress={() => ask("stop")}>
        Stop {count(stopping.length)}&hellip;
      </Button>
      <Menu label="More for the selected VMs" choices={choices}>
        More
      </Menu>
      <Button look="quiet" icon="close" onPress={onClear}>
        Clear
      </Button>
      {asked === "start" ? <StartDialog vms={starting} verb="start" onClose={close} /> : null}
      {asked === "resume" ? <StartDialog vms={resuming} verb="resume" onClose={close} /> : null}
      {asked === "stop" ? <StopDialog vms={stopping} verb="stop" onClose={close} /> : null}
      {asked === "restart" ? <StopDialog vms={restarting} verb="restart" onClose={close} /> : null}
      {asked === "snapshot" ? (
        <SnapshotDialog vms={may("vm_snapshot_create")} onClose={close} />
      ) : null}
      {asked === "rotate" ? (
        <RotateDialog
          vms={may("vm_rotate_key").filter(({ encrypted }) => encrypted)}
          onClose={close}
        />
      ) : null}
      {asked === "folder" ? <FolderDialog vms={may("vm_move")} onClose={close} /> : null}
      {asked === "tag" ? <TagDialog vms={may("vm_set")} onClose={close} /> : null}
      {asked === "delete" ? (
        <DeleteDialog vms={may("vm_delete")} onClose={close} onDone={onClear} />
      ) : null}
    </div>
  );
}
