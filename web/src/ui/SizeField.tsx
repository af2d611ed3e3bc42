import { numberFault, type Limits } from "../api/limits";
import { bytes } from "../lib/units";
import { Field } from "./Field";

const MIB = 1024 ** 2;
const UNITS = [
  { label: "MiB", bytes: MIB },
  { label: "GiB", bytes: 1024 * MIB },
  { label: "TiB", bytes: 1024 ** 2 * MIB },
] as const;

/** An amount of bytes as a person types it. */
export interface Size {
  amount: string;
  unit: string;
}

export const noSize: Size = { amount: "", unit: "GiB" };

export function sizeOf(value: number): Size {
  const unit =
    [...UNITS].reverse().find((each) => value >= each.bytes && value % each.bytes === 0) ??
    UNITS[0];
  return { amount: String(value / unit.bytes), unit: unit.label };
}

/** Its bytes; nothing if it is no number. */
export function bytesOf({ amount, unit }: Size): number | undefined {
  const scale = UNITS.find(({ label }) => label === unit)?.bytes ?? MIB;
  const value = Number(amount.replace(",", "."));
  return amount.trim() === "" || !Number.isFinite(value) ? undefined : Math.round(value * scale);
}

export function sizeFault(limits: Limits, size: Size): string | undefined {
  return numberFault(limits, bytesOf(size), bytes);
}

interface Props {
  label: string;
  size: Size;
  limits: Limits;
  hint?: string;
  isOptional?: boolean;
  onChange: (size: Size) => void;
}

export function SizeField({ label, size, limits, hint, isOptional = false, onChange }: Props) {
  const isLeftOut = size.amount === "";
  const fault = isLeftOut ? undefined : sizeFault(limits, size);
  return (
    <Field
      label={label}
      fault={fault}
      isOptional={isOptional}
      {...(hint === undefined ? {} : { hint })}
    >
      {(ids) => (
        <div className="input-with-unit">
          <input
            {...ids}
            className="input number"
            inputMode="decimal"
            autoComplete="off"
            value={size.amount}
            onChange={(event) => onChange({ ...size, amount: event.target.value })}
          />
          <select
            className="input"
            aria-label={`${label}: unit`}
            value={size.unit}
            onChange={(event) => onChange({ ...size, unit: event.target.value })}
          >
            {UNITS.map((unit) => (
              <option key={unit.label} value={unit.label}>
                {unit.label}
              </option>
            ))}
          </select>
        </div>
      )}
    </Field>
  );
}
