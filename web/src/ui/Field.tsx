import { useId, type ReactNode } from "react";

interface Around {
  label: string;
  hint?: ReactNode;
  fault?: string | undefined;
  isOptional?: boolean;
}

interface Described extends Around {
  children: (ids: {
    id: string;
    "aria-describedby": string | undefined;
    "aria-invalid": boolean;
  }) => ReactNode;
}

/** A label, what it is for, and what is wrong with its value. */
export function Field({ label, hint, fault, isOptional = false, children }: Described) {
  const id = useId();
  const described = [
    hint === undefined ? "" : `${id}-hint`,
    fault === undefined ? "" : `${id}-fault`,
  ];
  const names = described.filter((name) => name !== "").join(" ");
  return (
    <div className="field">
      <label className="field-label" htmlFor={id}>
        {label}
        {isOptional ? <span className="soft small"> optional</span> : null}
      </label>
      {children({
        id,
        "aria-describedby": names === "" ? undefined : names,
        "aria-invalid": fault !== undefined,
      })}
      {hint === undefined ? null : (
        <p className="field-hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
      {fault === undefined ? null : (
        <p className="field-fault" id={`${id}-fault`}>
          {fault}
        </p>
      )}
    </div>
  );
}

interface Text extends Around {
  value: string;
  onChange: (value: string) => void;
  type?: "text" | "password";
  autoComplete?: string;
  inputMode?: "numeric" | "decimal";
  placeholder?: string;
  isCode?: boolean;
  isLong?: boolean;
}

export function TextField({
  value,
  onChange,
  type = "text",
  autoComplete = "off",
  inputMode,
  placeholder,
  isCode,
  isLong,
  ...around
}: Text) {
  const look = isCode === true ? "input input-code" : "input";
  return (
    <Field {...around}>
      {(ids) =>
        isLong === true ? (
          <textarea
            {...ids}
            className={look}
            rows={3}
            value={value}
            onChange={(event) => onChange(event.target.value)}
          />
        ) : (
          <input
            {...ids}
            className={look}
            type={type}
            value={value}
            autoComplete={autoComplete}
            spellCheck={false}
            autoCapitalize="none"
            inputMode={inputMode}
            placeholder={placeholder}
            onChange={(event) => onChange(event.target.value)}
          />
        )
      }
    </Field>
  );
}

export interface Option {
  value: string;
  label: string;
}

interface Select extends Around {
  value: string;
  options: readonly Option[];
  onChange: (value: string) => void;
}

export function SelectField({ value, options, onChange, ...around }: Select) {
  return (
    <Field {...around}>
      {(ids) => (
        <select
          {...ids}
          className="input"
          value={value}
          onChange={(event) => onChange(event.target.value)}
        >
          {options.map((option) => (
            <option key={option.value} value={option.value}>
              {option.label}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

interface Check {
  label: string;
  hint?: ReactNode;
  isChecked: boolean;
  isDisabled?: boolean;
  onChange: (isChecked: boolean) => void;
}

export function CheckField({ label, hint, isChecked, isDisabled = false, onChange }: Check) {
  const id = useId();
  return (
    <div className="check">
      <input
        id={id}
        type="checkbox"
        checked={isChecked}
        disabled={isDisabled}
        aria-describedby={hint === undefined ? undefined : `${id}-hint`}
        onChange={(event) => onChange(event.target.checked)}
      />
      <label htmlFor={id}>{label}</label>
      {hint === undefined ? null : (
        <p className="field-hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

interface Choice extends Option {
  hint?: ReactNode;
}

interface Radio {
  label: string;
  value: string;
  options: readonly Choice[];
  onChange: (value: string) => void;
}

export function RadioField({ label, value, options, onChange }: Radio) {
  const name = useId();
  return (
    <fieldset className="radios">
      <legend className="field-label">{label}</legend>
      {options.map((option) => (
        <label key={option.value} className="radio">
          <input
            type="radio"
            name={name}
            value={option.value}
            checked={value === option.value}
            onChange={() => onChange(option.value)}
          />
          <span>
            {option.label}
            {option.hint === undefined ? null : <span className="field-hint">{option.hint}</span>}
          </span>
        </label>
      ))}
    </fieldset>
  );
}
