import { useAsk } from "../../api/ask";
import { SelectField, TextField } from "../../ui/Field";
import type { ScopeDraft } from "./scope";

const TYPES = [
  { value: "site", label: "The whole site" },
  { value: "folder", label: "A folder, with the VMs and disks in it" },
  { value: "vm", label: "One VM" },
  { value: "datastore", label: "A datastore, without the VMs in it" },
  { value: "network", label: "A network, without the VMs on it" },
];

interface Props {
  scope: ScopeDraft;
  onChange: (scope: ScopeDraft) => void;
}

/** Where a role counts. */
export function ScopeField({ scope, onChange }: Props) {
  const { type } = scope;
  const query = { limit: 1000 };
  const folders = useAsk("folder_list", { query }, { enabled: type === "folder" });
  const stores = useAsk("datastore_list", { query }, { enabled: type === "datastore" });
  const networks = useAsk("network_list", { query }, { enabled: type === "network" });
  const known = { folder: folders.data, datastore: stores.data, network: networks.data };
  const names = type === "site" || type === "vm" ? [] : (known[type]?.items ?? []);
  return (
    <div className="field-row">
      <SelectField
        label="Where it counts"
        value={type}
        options={TYPES}
        onChange={(chosen) => onChange({ type: chosen as ScopeDraft["type"], name: "" })}
      />
      {type === "vm" ? (
        <TextField
          label="VM"
          hint="Its name or id, or that of a disk that no VM has."
          value={scope.name}
          onChange={(name) => onChange({ ...scope, name })}
        />
      ) : null}
      {type === "folder" || type === "datastore" || type === "network" ? (
        <SelectField
          label="Which"
          value={scope.name}
          onChange={(name) => onChange({ ...scope, name })}
          options={[
            { value: "", label: names.length === 0 ? "There is none" : "Choose one" },
            ...names.map(({ name }) => ({ value: name, label: name })),
          ]}
        />
      ) : null}
    </div>
  );
}
