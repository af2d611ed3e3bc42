import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { createDump, deleteDump } from "../../../actions/dump";
import { limitsOf, textFault } from "../../../api/limits";
import type { Schemas, Vm } from "../../../api/types";
import { bytes, moment } from "../../../lib/units";
import { TextField } from "../../../ui/Field";

const MS = 1_000;

export function CreateDumpDialog({ vm, onClose }: { vm: Vm; onClose: () => void }) {
  const [label, setLabel] = useState("");
  const fault = label === "" ? undefined : textFault(limitsOf("DumpVm", "label"), label);
  return (
    <ActionDialog
      title={`Dump the memory of ${vm.name}`}
      submit="Dump"
      actions={fault === undefined ? [createDump(vm, label === "" ? undefined : label)] : []}
      onClose={onClose}
    >
      <p>
        The guest stands still until all of its {bytes(vm.memory_bytes)} are written, encrypted
        under the VM&rsquo;s key, and then goes on. The datastore needs as much space meanwhile.
      </p>
      <TextField
        label="Label"
        hint="It is not encrypted."
        value={label}
        onChange={setLabel}
        fault={fault}
        isOptional
      />
    </ActionDialog>
  );
}

export function DeleteDumpDialog({
  vm,
  dump,
  onClose,
}: {
  vm: Vm;
  dump: Schemas["Dump"];
  onClose: () => void;
}) {
  return (
    <ActionDialog
      title={`Delete dump ${dump.number} of ${vm.name}`}
      submit="Delete"
      actions={[deleteDump(vm, dump.number)]}
      onClose={onClose}
      loses={`The guest\u2019s memory of ${moment(dump.at_unix_seconds * MS)}, for good.`}
    />
  );
}
