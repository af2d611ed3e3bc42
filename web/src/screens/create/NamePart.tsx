import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { SelectField, TextField } from "../../ui/Field";
import { Panel } from "../../ui/Panel";
import type { PartProps } from "./CreateVm";
import { demandsOf } from "./draft";

export function NamePart({
  draft,
  faults,
  change,
  policies,
}: PartProps & { policies: readonly Schemas["Policy"][] }) {
  const folders = useAsk("folder_list", { query: { limit: 1000 } });
  const policy = policies.find(({ name }) => name === draft.policy);
  const demands = demandsOf(policy?.rules);
  return (
    <Panel title="Name and place">
      <div className="form">
        <TextField
          label="Name"
          value={draft.name}
          onChange={(name) => change({ name })}
          fault={faults.name}
          isCode
        />
        <div className="field-row">
          <SelectField
            label="Folder"
            hint="Roles that count in it count for the VM."
            value={draft.folder}
            onChange={(folder) => change({ folder })}
            options={[
              { value: "", label: "None" },
              ...(folders.data?.items ?? []).map(({ name }) => ({ value: name, label: name })),
            ]}
          />
          <SelectField
            label="Policy"
            hint={
              policy === undefined
                ? "Rules that it is made under and keeps."
                : demands.length === 0
                  ? "It demands nothing here."
                  : `It demands ${demands.join(", ")}.`
            }
            value={draft.policy}
            onChange={(chosen) => change({ policy: chosen })}
            options={[
              { value: "", label: "None" },
              ...policies.map(({ name }) => ({ value: name, label: name })),
            ]}
          />
        </div>
        <TextField
          label="Tags"
          hint="KEY or KEY=VALUE, separated by spaces."
          value={draft.tags}
          onChange={(tags) => change({ tags })}
          fault={faults.tags}
          isCode
          isOptional
        />
        <TextField
          label="Notes"
          value={draft.notes}
          onChange={(notes) => change({ notes })}
          fault={faults.notes}
          isLong
          isOptional
        />
      </div>
    </Panel>
  );
}
