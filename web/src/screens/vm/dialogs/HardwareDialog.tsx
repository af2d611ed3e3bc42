import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { change, NO_CHANGES } from "../../../actions/vm";
import { limitsOf, textFault } from "../../../api/limits";
import type { Schemas, Vm } from "../../../api/types";
import { SelectField, TextField } from "../../../ui/Field";

type Boot = Schemas["Boot"];

interface Written {
  processor: string;
  machineType: string;
  cdrom: string;
  from: Boot["type"];
  order: string;
  kernel: string;
  initrd: string;
  arguments: string;
}

function writtenOf({ processor, machine_type, cdrom, boot }: Vm): Written {
  const kernel = boot.type === "kernel" ? boot : undefined;
  return {
    processor: processor ?? "host",
    machineType: machine_type ?? "",
    cdrom: cdrom?.type === "image" ? cdrom.path : "",
    from: boot.type,
    order: boot.type === "disk" ? (boot.order ?? []).join(",") : "",
    kernel: kernel?.kernel ?? "",
    initrd: kernel?.initrd ?? "",
    arguments: kernel?.arguments ?? "",
  };
}

function bootOf({ from, order, kernel, initrd, arguments: words }: Written): Boot {
  if (from === "disk")
    return { type: "disk", order: order.split(/[\s,]+/).filter((device) => device !== "") };
  return {
    type: "kernel",
    kernel,
    ...(initrd === "" ? {} : { initrd }),
    ...(words === "" ? {} : { arguments: words }),
  };
}

/** What a VM that is off has for a processor and a board, and what it boots. */
export function HardwareDialog({ vm, onClose }: { vm: Vm; onClose: () => void }) {
  const [former] = useState(() => writtenOf(vm));
  const [now, write] = useState(former);
  const set = (changes: Partial<Written>) => write((before) => ({ ...before, ...changes }));
  const isOther = (...fields: (keyof Written)[]) =>
    fields.some((field) => now[field] !== former[field]);
  const limits = (field: "processor" | "machine_type") => limitsOf("PatchVm", field);
  const kernelFault =
    now.from === "kernel" && !now.kernel.startsWith("/") ? "A path that begins with /." : undefined;
  const faults = {
    processor: textFault(limits("processor"), now.processor),
    machineType: textFault(limits("machine_type"), now.machineType),
    cdrom: now.cdrom === "" || now.cdrom.startsWith("/") ? undefined : "A path that begins with /.",
    kernel: kernelFault,
  };
  const isValid = Object.values(faults).every((fault) => fault === undefined);
  const cdrom: Schemas["Cdrom"] =
    now.cdrom === "" ? { type: "absent" } : { type: "image", path: now.cdrom };
  const action = isValid
    ? change(vm, {
        ...NO_CHANGES,
        processor: isOther("processor") ? now.processor : undefined,
        machineType: isOther("machineType") ? now.machineType : undefined,
        cdrom: isOther("cdrom") ? cdrom : undefined,
        boot: isOther("from", "order", "kernel", "initrd", "arguments") ? bootOf(now) : undefined,
      })
    : undefined;
  return (
    <ActionDialog
      title={`Hardware of ${vm.name}`}
      submit="Change"
      actions={action === undefined ? [] : [action]}
      onClose={onClose}
    >
      <div className="field-row">
        <TextField
          label="Processor"
          hint="host, a level such as x86-64-v3, or a model of QEMU"
          value={now.processor}
          onChange={(processor) => set({ processor })}
          fault={faults.processor}
          isCode
        />
        <TextField
          label="Board"
          hint="Its guest finds newer devices with a newer one."
          value={now.machineType}
          onChange={(machineType) => set({ machineType })}
          fault={faults.machineType}
          isCode
        />
      </div>
      <TextField
        label="CD-ROM"
        hint="A file in one of the host&rsquo;s boot directories; empty: no drive."
        value={now.cdrom}
        onChange={(path) => set({ cdrom: path })}
        fault={faults.cdrom}
        isCode
        isOptional
      />
      <SelectField
        label="Boots"
        value={now.from}
        onChange={(from) => set({ from: from === "kernel" ? "kernel" : "disk" })}
        options={[
          { value: "disk", label: "From its devices" },
          { value: "kernel", label: "A kernel of the host" },
        ]}
      />
      {now.from === "disk" ? (
        <TextField
          label="In this order"
          hint={`Such as cdrom,disk0,nic0, and no others; empty: the CD-ROM, then ${vm.disks.map(({ name }) => name).join(", ") || "its disks"}.`}
          value={now.order}
          onChange={(order) => set({ order })}
          isCode
          isOptional
        />
      ) : (
        <>
          <TextField
            label="Kernel"
            value={now.kernel}
            onChange={(kernel) => set({ kernel })}
            fault={faults.kernel}
            isCode
          />
          <TextField
            label="Initial RAM disk"
            value={now.initrd}
            onChange={(initrd) => set({ initrd })}
            isCode
            isOptional
          />
          <TextField
            label="Command line"
            hint="It is shown and logged: nothing secret belongs in it."
            value={now.arguments}
            onChange={(words) => set({ arguments: words })}
            isCode
            isOptional
          />
        </>
      )}
    </ActionDialog>
  );
}
