import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { daysInSeconds, setCryptoperiod } from "../../../actions/cryptoperiod";
import { limitsOf, numberFault } from "../../../api/limits";
import type { Schemas } from "../../../api/types";
import { dayTime, minutesOf } from "../../../lib/times";
import { duration } from "../../../lib/units";
import { RadioField, TextField } from "../../../ui/Field";
import { named } from "./naming";

const DAYS = "90";

/** Sets how long the data keys of VMs are used; what one VM has is where its dialog begins. */
export function CryptoperiodDialog({
  vms,
  present,
  onClose,
}: {
  vms: readonly { name: string }[];
  present?: Schemas["Cryptoperiod"] | undefined;
  onClose: () => void;
}) {
  const window = present?.window ?? undefined;
  const [kind, setKind] = useState("period");
  const [days, setDays] = useState(
    present === undefined ? DAYS : String(present.every_s / daysInSeconds(1)),
  );
  const [from, setFrom] = useState(window === undefined ? "" : dayTime(window.from_minutes));
  const [to, setTo] = useState(window === undefined ? "" : dayTime(window.to_minutes));
  const everyS = daysInSeconds(/^[0-9]+(\.[0-9]+)?$/.test(days) ? Number(days) : NaN);
  const daysFault = numberFault(limitsOf("Cryptoperiod", "every_s"), everyS, duration);
  const [fromMinutes, toMinutes] = [minutesOf(from), minutesOf(to)];
  const hasWindow = from !== "" || to !== "";
  const windowFault =
    hasWindow && (fromMinutes === undefined || toMinutes === undefined)
      ? "Both as hours and minutes, as in 01:30."
      : undefined;
  const period = {
    every_s: everyS,
    ...(fromMinutes === undefined || toMinutes === undefined
      ? {}
      : { window: { from_minutes: fromMinutes, to_minutes: toMinutes } }),
  };
  const isReady = kind === "never" || (daysFault === undefined && windowFault === undefined);
  return (
    <ActionDialog
      title={`Renewal of the data keys of ${named(vms)}`}
      submit="Set"
      actions={
        isReady ? vms.map((vm) => setCryptoperiod(vm, kind === "never" ? undefined : period)) : []
      }
      onClose={onClose}
    >
      <RadioField
        label="Renewed"
        value={kind}
        onChange={setKind}
        options={[
          {
            value: "period",
            label: "By itself",
            hint: "All data is rewritten under new keys, while the VM runs or is off.",
          },
          { value: "never", label: "On request only" },
        ]}
      />
      {kind === "never" ? null : (
        <>
          <TextField
            label="Every, in days"
            inputMode="numeric"
            value={days}
            onChange={setDays}
            fault={daysFault}
          />
          <div className="field-row">
            <TextField
              label="Begins after, UTC"
              placeholder="01:00"
              value={from}
              onChange={setFrom}
              isOptional
            />
            <TextField
              label="And before, UTC"
              placeholder="05:00"
              hint="It may pass midnight."
              value={to}
              onChange={setTo}
              fault={windowFault}
              isOptional
            />
          </div>
        </>
      )}
    </ActionDialog>
  );
}
