import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { addRule } from "../../../actions/schedule";
import { limitsOf, numberFault } from "../../../api/limits";
import type { Schemas, Vm } from "../../../api/types";
import { duration } from "../../../lib/units";
import { CheckField, Field, SelectField, TextField } from "../../../ui/Field";

const UNITS = [
  { value: "60", label: "minutes" },
  { value: "3600", label: "hours" },
  { value: "86400", label: "days" },
];
const DAY_S = 86_400;
const QUIESCE_S = 30;

/** Minutes after midnight; nothing if it is no time of the day. */
function minutesOf(time: string): number | undefined {
  const [, hours, minutes] = /^(\d\d):(\d\d)$/.exec(time) ?? [];
  return hours === undefined || minutes === undefined
    ? undefined
    : Number(hours) * 60 + Number(minutes);
}

export function RuleDialog({
  vm,
  rules,
  onClose,
}: {
  vm: Vm;
  rules: readonly Schemas["SnapshotRule"][];
  onClose: () => void;
}) {
  const [amount, setAmount] = useState("1");
  const [unit, setUnit] = useState(String(DAY_S));
  const [keep, setKeep] = useState("7");
  const [time, setTime] = useState("");
  const [quiesces, setQuiesces] = useState(false);
  const every = Number(amount) * Number(unit);
  const everyFault = numberFault(limitsOf("SnapshotRule", "every_s"), every, duration);
  const keepFault = numberFault(limitsOf("SnapshotRule", "keep"), Number(keep));
  const isOfDays = every % DAY_S === 0;
  const at = isOfDays ? minutesOf(time) : undefined;
  const isValid = everyFault === undefined && keepFault === undefined;
  const rule = {
    every_s: every,
    keep: Number(keep),
    ...(at === undefined ? {} : { at_minutes: at }),
    ...(quiesces ? { quiesce_within_s: QUIESCE_S } : {}),
  };
  return (
    <ActionDialog
      title={`Snapshots of ${vm.name} by themselves`}
      submit="Set"
      actions={isValid ? [addRule(vm.name, rules, rule)] : []}
      onClose={onClose}
    >
      <div className="field-row">
        <TextField
          label="Every"
          inputMode="numeric"
          value={amount}
          onChange={setAmount}
          fault={everyFault}
        />
        <SelectField label="Unit" value={unit} options={UNITS} onChange={setUnit} />
      </div>
      <TextField
        label="Snapshots to keep"
        hint="Older ones of this rule are deleted, and no others."
        inputMode="numeric"
        value={keep}
        onChange={setKeep}
        fault={keepFault}
      />
      {isOfDays ? (
        <Field
          label="Time of the day"
          hint="UTC; without one, the snapshots of many VMs are spread."
          isOptional
        >
          {(ids) => (
            <input
              {...ids}
              className="input"
              type="time"
              value={time}
              onChange={(event) => setTime(event.target.value)}
            />
          )}
        </Field>
      ) : null}
      <CheckField
        label="Freeze the guest&rsquo;s file systems"
        hint="Its agent does, or there is no snapshot."
        isChecked={quiesces}
        onChange={setQuiesces}
      />
    </ActionDialog>
  );
}
