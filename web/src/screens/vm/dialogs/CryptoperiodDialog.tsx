import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { setCryptoperiod } from "../../../actions/schedule";
import { limitsOf, numberFault } from "../../../api/limits";
import type { Vm } from "../../../api/types";
import { duration } from "../../../lib/units";
import { TextField } from "../../../ui/Field";

const DAY_S = 86_400;

export function CryptoperiodDialog({ vm, onClose }: { vm: Vm; onClose: () => void }) {
  const present = vm.cryptoperiod?.period.every_s;
  const [days, setDays] = useState(present === undefined ? "" : String(present / DAY_S));
  const wanted = days.trim() === "" ? undefined : Number(days);
  const fault =
    wanted === undefined
      ? undefined
      : numberFault(limitsOf("Cryptoperiod", "every_s"), wanted * DAY_S, duration);
  return (
    <ActionDialog
      title={`How long data keys of ${vm.name} are used`}
      submit="Set"
      actions={fault === undefined ? [setCryptoperiod(vm.name, wanted)] : []}
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
