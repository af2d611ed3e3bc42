import { useState } from "react";
import { Link } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { createNetwork } from "../../actions/networks";
import { useAsk } from "../../api/ask";
import { limitsOf, numberFault, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { count, plural } from "../../lib/units";
import { useTitle } from "../../shell/useTitle";
import { TextField } from "../../ui/Field";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Empty } from "../../ui/Notes";
import { Panel, ScreenHead } from "../../ui/Panel";
import { Table, type Column } from "../../ui/Table";

export default function Networks() {
  useTitle("Networks");
  const asked = useAsk("network_list", { query: { limit: 1000 } });
  const [isCreating, create] = useState(false);
  return (
    <>
      <ScreenHead
        title="Networks"
        actions={
          <MayButton
            operation="network_create"
            look="primary"
            icon="plus"
            onPress={() => create(true)}
          >
            Create a network&hellip;
          </MayButton>
        }
      />
      <Panel
        title={asked.data === undefined ? "Of the site" : plural(asked.data.total, "network")}
        isFlush
      >
        <Listed
          asked={asked}
          empty={
            <Empty icon="network" title="The site has no network yet">
              Without one, a VM has a card on the network <code>user</code>, on which nobody can
              connect to it. A network of the site is on a bridge of each host that has it.
            </Empty>
          }
        >
          {(networks) => (
            <Table label="Networks" columns={COLUMNS} rows={networks} keyOf={({ id }) => id} />
          )}
        </Listed>
      </Panel>
      {isCreating ? <CreateDialog onClose={() => create(false)} /> : null}
    </>
  );
}

const COLUMNS: readonly Column<Schemas["Network"]>[] = [
  { name: "Name", cell: ({ name }) => <Link href={addresses.network(name)}>{name}</Link> },
  { name: "VLAN", cell: ({ vlan }) => vlan ?? "untagged" },
  {
    name: "Hosts",
    cell: ({ hosts }) =>
      hosts.length === 0 ? (
        <span className="soft">none yet: no VM can be on it</span>
      ) : (
        hosts.map(({ host, bridge }) => `${host} (${bridge})`).join(", ")
      ),
  },
  { name: "VMs", isNumber: true, cell: ({ vms }) => count(vms) },
];

function CreateDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [vlan, setVlan] = useState("");
  const fault = textFault(limitsOf("CreateNetwork", "name"), name);
  const number = /^[0-9]+$/.test(vlan) ? Number(vlan) : undefined;
  const vlanFault =
    vlan === "" ? undefined : numberFault(limitsOf("CreateNetwork", "vlan"), number);
  return (
    <ActionDialog
      title="Create a network"
      submit="Create"
      actions={fault === undefined && vlanFault === undefined ? [createNetwork(name, number)] : []}
      onClose={onClose}
    >
      <TextField
        label="Name"
        value={name}
        onChange={setName}
        fault={name === "" ? undefined : fault}
      />
      <TextField
        label="VLAN"
        hint="On the bridges; guests see no tags. It does not change. Without one, ports are untagged."
        inputMode="numeric"
        value={vlan}
        onChange={setVlan}
        fault={vlanFault}
        isOptional
      />
      <p className="soft">No host has it until you say on which bridge.</p>
    </ActionDialog>
  );
}
