import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { daysInSeconds, setCryptoperiod } from "../../../actions/cryptoperiod";
import { limitsOf, numberFault } from "../../../api/limits";
import type { Vm } from "../../../api/types";
import { duration } from "../../../lib/units";
import { TextField } from "../../../ui/Field";

export function CryptoperiodDialog({ vm, onClose }: { vm: Vm; onClose: () => void }) {
  const present = vm.cryptoperiod?.period;
  const [days, setDays] = useState(
    present === undefined ? "" : String(present.every_s / daysInSeconds(1)),
  );
  // The window of the day stays what it is.
  const wanted =
    days.trim() === "" ? undefined : { ...present, every_s: daysInSeconds(Number(days)) };
  const fault =
    wanted === undefined
      ? undefined
      : numberFault(limitsOf("Cryptoperiod", "every_s"), wanted.every_s, duration);
  return (
    <ActionDialog
      title={`How long data keys of ${vm.name} are used`}
      submit="Set"
      actions={fault === undefined ? [setCryptoperiod(vm, wanted)] : []}
      onClose={onClose}
    >
      <TextField
        label="Days"
        hint="Then all data is rewritten under new data keys; the VM may run meanwhile. Without a number, only on request."
        inputMode="numeric"
        value={days}
        onChange={setDays}
        fault={fault}
        isOptional
      />
    </ActionDialog>
  );
}
