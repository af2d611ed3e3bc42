import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { clone } from "../../../actions/vm";
import { useAsk } from "../../../api/ask";
import { limitsOf, textFault } from "../../../api/limits";
import type { Vm } from "../../../api/types";
import { RadioField, SelectField, TextField } from "../../../ui/Field";

interface Props {
  vm: Vm;
  /** The snapshot to begin with. */
  snapshot?: string;
  onClose: () => void;
}

export function CloneDialog({ vm, snapshot: chosen = "", onClose }: Props) {
  const [name, setName] = useState(`${vm.name}-clone`);
  const [snapshot, setSnapshot] = useState(chosen);
  const [how, setHow] = useState("copy");
  const stores = useAsk("datastore_list", { query: { limit: 1000 } });
  const [datastore, setDatastore] = useState("");
  const [seal, setSeal] = useState("");
  const isCopy = how === "copy";
  const fault = textFault(limitsOf("CloneVm", "name"), name);
  const wish = {
    name,
    snapshot: snapshot === "" ? undefined : snapshot,
    linked: !isCopy,
    encrypted: isCopy && seal !== "" ? seal === "sealed" : undefined,
    datastore: datastore === "" ? undefined : datastore,
  };
  return (
    <ActionDialog
      title={`Clone ${vm.name}`}
      submit="Clone"
      actions={fault === undefined ? [clone(vm, wish)] : []}
      onClose={onClose}
    >
      <TextField label="Name of the new VM" value={name} onChange={setName} fault={fault} isCode />
      <SelectField
        label="Content"
        value={snapshot}
        onChange={setSnapshot}
        options={[
          { value: "", label: "As it is now" },
          ...(vm.snapshots ?? []).map((each) => ({
            value: each.name,
            label: `Snapshot ${each.name}`,
          })),
        ]}
      />
      <RadioField
        label="Disks"
        value={how}
        onChange={setHow}
        options={[
          {
            value: "copy",
            label: "Copied",
            hint: "Under keys of its own; nothing ties it to its origin.",
          },
          {
            value: "linked",
            label: "Linked",
            hint: "Made at once: it shares the snapshot\u2019s content, and writes under a key of its own.",
          },
        ]}
      />
      <details className="what">
        <summary>Elsewhere, or otherwise</summary>
        <SelectField
          label="Datastore"
          hint="Of the same host."
          value={datastore}
          onChange={setDatastore}
          options={[
            { value: "", label: `That of ${vm.name}` },
            ...(stores.data?.items ?? [])
              .filter((store) => store.name !== vm.datastore)
              .map((store) => ({ value: store.name, label: store.name })),
          ]}
        />
        {isCopy ? (
          <SelectField
            label="Protection"
            value={seal}
            onChange={setSeal}
            options={[
              { value: "", label: "As its origin" },
              { value: "sealed", label: "Sealed" },
              { value: "clear", label: "Clear: who reads the datastore reads its disks" },
            ]}
          />
        ) : null}
      </details>
    </ActionDialog>
  );
}
