import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { rotateKey } from "../../../actions/vm";
import { useAsk } from "../../../api/ask";
import { RadioField, SelectField } from "../../../ui/Field";
import { named } from "./naming";

export function RotateDialog({
  vms,
  onClose,
}: {
  vms: readonly { name: string }[];
  onClose: () => void;
}) {
  const providers = useAsk("key_provider_list", { query: { limit: 1000 } });
  const [what, setWhat] = useState("key");
  const [provider, setProvider] = useState("");
  const wish = { data: what === "data", provider: provider === "" ? undefined : provider };
  return (
    <ActionDialog
      title={`New key for ${named(vms)}`}
      submit="Rotate"
      actions={vms.map((vm) => rotateKey(vm, wish))}
      onClose={onClose}
    >
      <RadioField
        label="What is renewed"
        value={what}
        onChange={setWhat}
        options={[
          {
            value: "key",
            label: "The VM's key",
            hint: "Seconds: its data keys are sealed under the new one. Anyone who had the data keys still has them.",
          },
          {
            value: "data",
            label: "The data keys, too",
            hint: "All data is rewritten under new data keys, with snapshots; the VM may run meanwhile.",
          },
        ]}
      />
      <SelectField
        label="Provider of the new key"
        value={provider}
        onChange={setProvider}
        options={[
          { value: "", label: "That of the present key" },
          ...(providers.data?.items ?? []).map(({ name }) => ({ value: name, label: name })),
        ]}
      />
    </ActionDialog>
  );
}
