import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { limitDisk, limitVm } from "../../../actions/vm";
import { limitsOf, numberFault } from "../../../api/limits";
import type { Disk, Schemas, Vm } from "../../../api/types";
import { bytes, count } from "../../../lib/units";
import { TextField } from "../../../ui/Field";

const MIB = 1024 ** 2;

interface Props {
  vm: Vm;
  /** One disk; without it, all disks of the VM together. */
  disk?: Disk;
  onClose: () => void;
}

const number = (text: string) => (text.trim() === "" ? undefined : Number(text));

export function LimitDialog({ vm, disk, onClose }: Props) {
  const present: Schemas["IoLimits"] = (disk === undefined ? vm.limits : disk.limits) ?? {};
  const [iops, setIops] = useState(String(present.iops?.per_second ?? ""));
  const [rate, setRate] = useState(
    typeof present.bandwidth?.bytes_per_second === "number"
      ? String(present.bandwidth.bytes_per_second / MIB)
      : "",
  );
  const wantedIops = number(iops);
  const wantedRate = number(rate) === undefined ? undefined : Number(rate) * MIB;
  const iopsFault =
    wantedIops === undefined
      ? undefined
      : numberFault(limitsOf("IopsLimit", "per_second"), wantedIops, count);
  const rateFault =
    wantedRate === undefined
      ? undefined
      : numberFault(limitsOf("BandwidthLimit", "bytes_per_second"), wantedRate, bytes);
  const limits = {
    ...(wantedIops === undefined ? {} : { iops: { per_second: wantedIops } }),
    ...(wantedRate === undefined ? {} : { bandwidth: { bytes_per_second: wantedRate } }),
  };
  const action = disk === undefined ? limitVm(vm, limits) : limitDisk(vm, disk.name, limits);
  const isValid = iopsFault === undefined && rateFault === undefined;
  return (
    <ActionDialog
      title={
        disk === undefined
          ? `Limit all disks of ${vm.name} together`
          : `Limit ${disk.name} of ${vm.name}`
      }
      submit="Set"
      actions={isValid ? [action] : []}
      onClose={onClose}
    >
      <p className="soft">An empty field is no limit. Requests beyond it wait; none is refused.</p>
      <TextField
        label="Operations a second"
        inputMode="numeric"
        value={iops}
        onChange={setIops}
        fault={iopsFault}
        isOptional
      />
      <TextField
        label="MiB a second, read and written together"
        inputMode="decimal"
        value={rate}
        onChange={setRate}
        fault={rateFault}
        isOptional
      />
    </ActionDialog>
  );
}
