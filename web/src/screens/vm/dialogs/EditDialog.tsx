import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { change } from "../../../actions/vm";
import { limitsOf, numberFault, textFault } from "../../../api/limits";
import type { Schemas, Vm } from "../../../api/types";
import { SelectField, TextField } from "../../../ui/Field";
import { bytesOf, sizeFault, SizeField, sizeOf } from "../../../ui/SizeField";

export function EditDialog({ vm, onClose }: { vm: Vm; onClose: () => void }) {
  const [name, setName] = useState(vm.name);
  const [notes, setNotes] = useState(vm.notes ?? "");
  const [cpus, setCpus] = useState(String(vm.cpus));
  const [memory, setMemory] = useState(sizeOf(vm.memory_bytes));
  const [restart, setRestart] = useState<Schemas["RestartPolicy"]>(vm.restart);
  const memoryLimits = limitsOf("PatchVm", "memory_bytes");
  const faults = {
    name: textFault(limitsOf("PatchVm", "name"), name),
    notes: textFault(limitsOf("PatchVm", "notes"), notes),
    cpus: numberFault(limitsOf("Cpus", "cores"), Number(cpus)),
    memory: sizeFault(memoryLimits, memory),
  };
  const isValid = Object.values(faults).every((fault) => fault === undefined);
  const differs = <Value,>(value: Value, former: Value) => (value === former ? undefined : value);
  const action = isValid
    ? change(vm, {
        name: differs(name, vm.name),
        notes: differs(notes, vm.notes ?? ""),
        cpus: differs(Number(cpus), vm.cpus),
        memoryBytes: differs(bytesOf(memory) ?? 0, vm.memory_bytes),
        restart: differs(restart, vm.restart),
      })
    : undefined;
  return (
    <ActionDialog
      title={`Change ${vm.name}`}
      submit="Change"
      actions={action === undefined ? [] : [action]}
      onClose={onClose}
    >
      <TextField label="Name" value={name} onChange={setName} fault={faults.name} isCode />
      <div className="field-row">
        <TextField
          label="Processors"
          inputMode="numeric"
          value={cpus}
          onChange={setCpus}
          fault={faults.cpus}
        />
        <SizeField label="Memory" size={memory} limits={memoryLimits} onChange={setMemory} />
      </div>
      <p className="field-hint">
        While it runs, processors and memory only grow, as far as it was made for.
      </p>
      <SelectField
        label="After a crash"
        value={restart}
        onChange={(value) => setRestart(value === "never" ? "never" : "on_failure")}
        options={[
          { value: "on_failure", label: "Start it again" },
          { value: "never", label: "Leave it off" },
        ]}
      />
      <TextField
        label="Notes"
        value={notes}
        onChange={setNotes}
        fault={faults.notes}
        isLong
        isOptional
      />
    </ActionDialog>
  );
}
