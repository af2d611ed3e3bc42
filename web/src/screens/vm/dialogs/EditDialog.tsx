import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { change, NO_CHANGES } from "../../../actions/vm";
import { limitsOf, numberFault, textFault } from "../../../api/limits";
import type { Schemas, Vm } from "../../../api/types";
import { bytes, count } from "../../../lib/units";
import { SelectField, TextField } from "../../../ui/Field";
import { bytesOf, noSize, sizeFault, SizeField, sizeOf } from "../../../ui/SizeField";

export function EditDialog({ vm, onClose }: { vm: Vm; onClose: () => void }) {
  const [name, setName] = useState(vm.name);
  const [notes, setNotes] = useState(vm.notes ?? "");
  const [cpus, setCpus] = useState(String(vm.cpus));
  const [memory, setMemory] = useState(sizeOf(vm.memory_bytes));
  const [mostCpus, setMostCpus] = useState(String(vm.growth?.max_cpus ?? ""));
  const formerMost = vm.growth?.max_memory_bytes;
  const [mostMemory, setMostMemory] = useState(
    typeof formerMost === "number" ? sizeOf(formerMost) : noSize,
  );
  const [restart, setRestart] = useState<Schemas["RestartPolicy"]>(vm.restart);
  const memoryLimits = limitsOf("PatchVm", "memory_bytes");
  const isOff = vm.power === "stopped" || vm.power === "crashed";
  const faults = {
    name: textFault(limitsOf("PatchVm", "name"), name),
    notes: textFault(limitsOf("PatchVm", "notes"), notes),
    cpus: numberFault(limitsOf("Cpus", "cores"), Number(cpus)),
    memory: sizeFault(memoryLimits, memory),
    mostCpus:
      mostCpus === "" ? undefined : numberFault(limitsOf("Growth", "max_cpus"), Number(mostCpus)),
    mostMemory:
      mostMemory.amount === ""
        ? undefined
        : sizeFault(limitsOf("Growth", "max_memory_bytes"), mostMemory),
  };
  const isValid = Object.values(faults).every((fault) => fault === undefined);
  const differs = <Value,>(value: Value, former: Value) => (value === former ? undefined : value);
  const growth = growthOf(mostCpus, bytesOf(mostMemory));
  const isSameGrowth =
    growth.max_cpus === (vm.growth?.max_cpus ?? undefined) &&
    growth.max_memory_bytes === (vm.growth?.max_memory_bytes ?? undefined);
  const action = isValid
    ? change(vm, {
        ...NO_CHANGES,
        name: differs(name, vm.name),
        notes: differs(notes, vm.notes ?? ""),
        cpus: differs(Number(cpus), vm.cpus),
        memoryBytes: differs(bytesOf(memory) ?? 0, vm.memory_bytes),
        growth: isSameGrowth ? undefined : growth,
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
      {isOff ? (
        <div className="field-row">
          <TextField
            label="Processors at most, while it runs"
            inputMode="numeric"
            value={mostCpus}
            onChange={setMostCpus}
            fault={faults.mostCpus}
            isOptional
          />
          <SizeField
            label="Memory at most, while it runs"
            size={mostMemory}
            limits={limitsOf("Growth", "max_memory_bytes")}
            onChange={setMostMemory}
            isOptional
          />
        </div>
      ) : null}
      <p className="field-hint">
        {isOff
          ? "The bounds take nothing until they are used. Memory grows by multiples of 128 MiB, and does not shrink while the VM runs."
          : growthInWords(vm.growth)}
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

function growthOf(cpus: string, memory: number | undefined): Schemas["Growth"] {
  return {
    ...(cpus === "" ? {} : { max_cpus: Number(cpus) }),
    ...(memory === undefined ? {} : { max_memory_bytes: memory }),
  };
}

/** How far a VM that runs grows. */
function growthInWords(growth: Schemas["Growth"] | undefined): string {
  const { max_cpus: cpus, max_memory_bytes: memory } = growth ?? {};
  const to = [
    ...(typeof cpus === "number" ? [`${count(cpus)} processors`] : []),
    ...(typeof memory === "number" ? [`${bytes(memory)} of memory`] : []),
  ];
  return to.length === 0
    ? "It was started without bounds to grow to: processors and memory change while it is off."
    : `While it runs, it grows to ${to.join(" and ")}, if nothing else is changed with it.`;
}
