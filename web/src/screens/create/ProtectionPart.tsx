import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { CheckField, RadioField, SelectField } from "../../ui/Field";
import { Note } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import type { PartProps } from "./CreateVm";

export function ProtectionPart({
  draft,
  change,
  rules,
}: PartProps & { rules: Schemas["PolicyRules"] | undefined }) {
  const providers = useAsk("key_provider_list", { query: { limit: 1000 } });
  const isDemanded = rules?.encryption_required === true;
  return (
    <Panel title="Protection">
      <div className="form">
        <RadioField
          label="Disks"
          value={draft.isSealed ? "sealed" : "clear"}
          onChange={(value) => change({ isSealed: value === "sealed" })}
          options={[
            {
              value: "sealed",
              label: "Sealed",
              hint: "Under a key of its own, which the key provider keeps.",
            },
            ...(isDemanded
              ? []
              : [
                  {
                    value: "clear",
                    label: "Clear",
                    hint: "Anyone who reads the datastore reads its disks.",
                  },
                ]),
          ]}
        />
        {draft.isSealed ? (
          <>
            <SelectField
              label="Key provider"
              value={draft.provider}
              onChange={(provider) => change({ provider })}
              options={[
                { value: "", label: "The policy\u2019s, or the only one" },
                ...(providers.data?.items ?? []).map(({ name }) => ({ value: name, label: name })),
              ]}
            />
            <CheckField
              label="Integrity tags"
              hint="A block that was modified or replaced by an old one cannot be read. Costs space, and time on writes."
              isChecked={draft.hasTags}
              isDisabled={rules?.integrity_required === true}
              onChange={(hasTags) => change({ hasTags })}
            />
          </>
        ) : (
          <Note tone="warning" title="Its disks are in plain text">
            They can be encrypted later, while the VM is off. Copies that were made before stay
            readable.
          </Note>
        )}
      </div>
    </Panel>
  );
}
