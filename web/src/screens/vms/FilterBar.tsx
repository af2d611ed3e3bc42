import { useMemo } from "react";
import type { PowerState, VmSummary } from "../../api/types";
import { powerWord, sealWord, type Seal } from "../../ui/Status";
import { Button } from "../../ui/Button";
import { Icon } from "../../ui/Icon";
import { isFiltering, NONE, valuesOf, type Criterion, type Filter } from "./filter";

interface Props {
  vms: readonly VmSummary[];
  filter: Filter;
  onChange: (filter: Filter) => void;
}

interface Choice {
  criterion: Criterion;
  label: string;
  value: (vm: VmSummary) => string | null | undefined;
  word?: (value: string) => string;
}

const CHOICES: readonly Choice[] = [
  { criterion: "host", label: "Host", value: ({ host }) => host },
  { criterion: "datastore", label: "Datastore", value: ({ datastore }) => datastore },
  { criterion: "policy", label: "Policy", value: ({ policy }) => policy },
  { criterion: "folder", label: "Folder", value: ({ folder }) => folder },
];
const POWERS: readonly PowerState[] = [
  "running",
  "stopped",
  "paused",
  "suspended",
  "crashed",
  "key_unavailable",
  "starting",
  "stopping",
  "unknown",
];
const SEALS: readonly Seal[] = ["sealed", "partly", "clear"];

export function FilterBar({ vms, filter, onChange }: Props) {
  const set = (criterion: Criterion, value: string) => onChange({ ...filter, [criterion]: value });
  const found = useMemo(() => CHOICES.map(({ value }) => valuesOf(vms, value)), [vms]);
  return (
    <div className="filters" role="search" aria-label="VMs">
      <div className="filter-text">
        <Icon name="search" size={16} />
        <input
          className="input"
          type="search"
          aria-label="Name or tag"
          placeholder="Name or tag"
          spellCheck={false}
          value={filter.text}
          onChange={(event) => set("text", event.target.value)}
        />
      </div>
      <Pick
        label="State"
        value={filter.power}
        values={POWERS}
        word={(value) => powerWord(value as PowerState)}
        onChange={(value) => set("power", value)}
      />
      <Pick
        label="Protection"
        value={filter.seal}
        values={SEALS}
        word={(value) => sealWord(value as Seal)}
        onChange={(value) => set("seal", value)}
      />
      {CHOICES.map(({ criterion, label }, index) => {
        const values = found[index] ?? [];
        // A choice between one and itself is none.
        if (values.length < 2 && filter[criterion] === "") return null;
        return (
          <Pick
            key={criterion}
            label={label}
            value={filter[criterion]}
            values={values}
            onChange={(value) => set(criterion, value)}
          />
        );
      })}
      {isFiltering(filter) ? (
        <Button
          look="quiet"
          icon="close"
          onPress={() =>
            onChange({
              text: "",
              power: "",
              seal: "",
              host: "",
              datastore: "",
              policy: "",
              folder: "",
              sort: filter.sort,
            })
          }
        >
          Clear
        </Button>
      ) : null}
    </div>
  );
}

interface PickProps {
  label: string;
  value: string;
  values: readonly string[];
  word?: (value: string) => string;
  onChange: (value: string) => void;
}

function Pick({ label, value, values, word = (each) => each, onChange }: PickProps) {
  return (
    <select
      className={value === "" ? "input filter" : "input filter filter-set"}
      aria-label={label}
      value={value}
      onChange={(event) => onChange(event.target.value)}
    >
      <option value="">{label}</option>
      {values.map((each) => (
        <option key={each} value={each}>
          {each === NONE ? `no ${label.toLowerCase()}` : word(each)}
        </option>
      ))}
    </select>
  );
}
