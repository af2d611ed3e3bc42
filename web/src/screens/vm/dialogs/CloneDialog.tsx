import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { clone } from "../../../actions/vm";
import { limitsOf, textFault } from "../../../api/limits";
import type { Vm } from "../../../api/types";
import { RadioField, SelectField, TextField } from "../../../ui/Field";

interface Props {
  vm: Vm;
  /** The snapshot to begin with. */
  snapshot?: string;
  onClose: () => void;
}

export function CloneDialog({ vm, snapshot: chosen = "", onClose }: Props) {
  const [name, setName] = useState(`${vm.name}-clone`);
  const [snapshot, setSnapshot] = useState(chosen);
  const [how, setHow] = useState("copy");
  const fault = textFault(limitsOf("CloneVm", "name"), name);
  const wish = {
    name,
    snapshot: snapshot === "" ? undefined : snapshot,
    linked: how === "linked",
    encrypted: undefined,
    datastore: undefined,
  };
  return (
    <ActionDialog
      title={`Clone ${vm.name}`}
      submit="Clone"
      actions={fault === undefined ? [clone(vm, wish)] : []}
      onClose={onClose}
    >
      <TextField label="Name of the new VM" value={name} onChange={setName} fault={fault} isCode />
      <SelectField
        label="Content"
        value={snapshot}
        onChange={setSnapshot}
        options={[
          { value: "", label: "As it is now" },
          ...(vm.snapshots ?? []).map((each) => ({
            value: each.name,
            label: `Snapshot ${each.name}`,
          })),
        ]}
      />
      <RadioField
        label="Disks"
        value={how}
        onChange={setHow}
        options={[
          {
            value: "copy",
            label: "Copied",
            hint: "Under keys of its own; nothing ties it to its origin.",
          },
          {
            value: "linked",
            label: "Linked",
            hint: "Made at once: it shares the snapshot\u2019s content, and writes under a key of its own.",
          },
        ]}
      />
    </ActionDialog>
  );
}
