import { useState } from "react";
import { Link } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { createGroup } from "../../actions/site";
import { useAsk } from "../../api/ask";
import { limitsOf, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { count, plural } from "../../lib/units";
import { useTitle } from "../../shell/useTitle";
import { RadioField, TextField } from "../../ui/Field";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Empty } from "../../ui/Notes";
import { Panel, ScreenHead } from "../../ui/Panel";
import { Table, type Column } from "../../ui/Table";
import { KEEPS } from "./keeps";

export default function Groups() {
  useTitle("Placement groups");
  const asked = useAsk("placement_group_list", { query: { limit: 1000 } });
  const [isCreating, create] = useState(false);
  return (
    <>
      <ScreenHead
        title="Placement groups"
        actions={
          <MayButton
            operation="placement_group_create"
            look="primary"
            icon="plus"
            onPress={() => create(true)}
          >
            Create a group&hellip;
          </MayButton>
        }
      />
      <Panel
        title={asked.data === undefined ? "Groups" : plural(asked.data.total, "group")}
        isFlush
      >
        <Listed
          asked={asked}
          empty={
            <Empty icon="vm" title="There is no placement group yet">
              The VMs of a group are kept apart, never two on one host, or together, so that they
              reach each other fast. Creations, moves and evacuations keep to it.
            </Empty>
          }
        >
          {(groups) => (
            <Table
              label="Placement groups"
              columns={COLUMNS}
              rows={groups}
              keyOf={({ id }) => id}
            />
          )}
        </Listed>
      </Panel>
      {isCreating ? <CreateDialog onClose={() => create(false)} /> : null}
    </>
  );
}

const COLUMNS: readonly Column<Schemas["PlacementGroup"]>[] = [
  { name: "Name", cell: ({ name }) => <Link href={addresses.placementGroup(name)}>{name}</Link> },
  { name: "VMs are kept", cell: ({ keep }) => KEEPS[keep] },
  { name: "VMs", isNumber: true, cell: ({ vms }) => count(vms.length) },
];

function CreateDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [keep, setKeep] = useState<Schemas["Keep"]>("apart");
  const fault = textFault(limitsOf("CreatePlacementGroup", "name"), name);
  return (
    <ActionDialog
      title="Create a placement group"
      submit="Create"
      actions={fault === undefined ? [createGroup(name, keep)] : []}
      onClose={onClose}
    >
      <TextField
        label="Name"
        value={name}
        onChange={setName}
        fault={name === "" ? undefined : fault}
      />
      <RadioField
        label="Its VMs are kept"
        value={keep}
        onChange={(value) => setKeep(value === "together" ? "together" : "apart")}
        options={[
          { value: "apart", label: "Apart", hint: "Never two on one host." },
          { value: "together", label: "Together", hint: "On one host as far as that has room." },
        ]}
      />
    </ActionDialog>
  );
}
