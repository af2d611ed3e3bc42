import { useState } from "react";
import { Link, useLocation, useParams } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { addNetworkHost, deleteNetwork, removeNetworkHost } from "../../actions/networks";
import { useAsk } from "../../api/ask";
import { limitsOf, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { count, plural } from "../../lib/units";
import { useMay } from "../../session/useMay";
import { useRefusal } from "../../session/useMe";
import { Nowhere } from "../../shell/Nowhere";
import { useTitle } from "../../shell/useTitle";
import { Button } from "../../ui/Button";
import { TextField } from "../../ui/Field";
import { HostField } from "../../ui/HostField";
import { MayButton } from "../../ui/MayButton";
import { Menu } from "../../ui/Menu";
import { Empty, ProblemNote, Waiting } from "../../ui/Notes";
import { Facts, Panel, ScreenHead } from "../../ui/Panel";
import { Table, type Column } from "../../ui/Table";

type Network = Schemas["Network"];

export default function NetworkScreen() {
  const { network: name = "" } = useParams<{ network: string }>();
  const asked = useAsk("network_show", { path: { network: name } });
  const network = asked.data;
  useTitle(network?.name ?? name);
  if (asked.error?.code === "not_found") return <Nowhere />;
  if (network === undefined) {
    return asked.error === null ? (
      <Waiting lines={6} label={`Loading ${name}`} />
    ) : (
      <ProblemNote problem={asked.error} retry={() => void asked.refetch()} />
    );
  }
  return (
    <>
      <ScreenHead
        title={network.name}
        above={<Link href={addresses.networks}>Networks</Link>}
        actions={<NetworkActions network={network} />}
      />
      <Panel title="Network">
        <Facts
          facts={[
            { label: "VLAN", value: network.vlan ?? "untagged" },
            { label: "VMs", value: `${count(network.vms)} with cards on it` },
            { label: "Id", value: <code>{network.id}</code> },
          ]}
        />
      </Panel>
      <Hosts network={network} />
    </>
  );
}

function Hosts({ network }: { network: Network }) {
  const mayRemove = useRefusal()("network_remove_host") === undefined;
  const [isAdding, add] = useState(false);
  const [leaving, leave] = useState<string>();
  const columns: readonly Column<Schemas["NetworkHost"]>[] = [
    { name: "Host", cell: ({ host }) => <Link href={addresses.host(host)}>{host}</Link> },
    { name: "Bridge", cell: ({ bridge }) => <code>{bridge}</code> },
    {
      name: "Actions",
      isUnseen: true,
      cell: ({ host }) =>
        mayRemove ? (
          <Button look="quiet" onPress={() => leave(host)} aria-label={`Take away from ${host}`}>
            Take away&hellip;
          </Button>
        ) : null,
    },
  ];
  return (
    <Panel
      title="Hosts that have it"
      isFlush
      aside={
        <MayButton operation="network_add_host" icon="plus" onPress={() => add(true)}>
          Add a host&hellip;
        </MayButton>
      }
    >
      {network.hosts.length === 0 ? (
        <Empty icon="host" title="No host has it yet">
          A VM on it is placed only on a host that has it. Say on which bridge of which host it is.
        </Empty>
      ) : (
        <Table label="Hosts" columns={columns} rows={network.hosts} keyOf={({ host }) => host} />
      )}
      {isAdding ? <AddHostDialog network={network} onClose={() => add(false)} /> : null}
      {leaving === undefined ? null : (
        <ActionDialog
          title={`Take ${network.name} from ${leaving}`}
          submit="Take away"
          actions={[removeNetworkHost(network, leaving)]}
          onClose={() => leave(undefined)}
        >
          <p>It is refused while a VM on {leaving}, or on its way there, is connected to it.</p>
        </ActionDialog>
      )}
    </Panel>
  );
}

function AddHostDialog({ network, onClose }: { network: Network; onClose: () => void }) {
  const [host, setHost] = useState("");
  const [bridge, setBridge] = useState("");
  const fault = textFault(limitsOf("AddNetworkHost", "bridge"), bridge);
  return (
    <ActionDialog
      title={`Connect a host to ${network.name}`}
      submit="Connect"
      actions={host !== "" && fault === undefined ? [addNetworkHost(network, host, bridge)] : []}
      onClose={onClose}
    >
      <HostField value={host} onChange={setHost} without={network.hosts.map((each) => each.host)} />
      <TextField
        label="Bridge"
        hint={
          typeof network.vlan === "number"
            ? "A bridge of that host that filters VLANs (ip link set br0 type bridge vlan_filtering 1)."
            : "A bridge of that host."
        }
        placeholder="br0"
        value={bridge}
        onChange={setBridge}
        fault={bridge === "" ? undefined : fault}
        isCode
      />
    </ActionDialog>
  );
}

function NetworkActions({ network }: { network: Network }) {
  const may = useMay();
  const [, go] = useLocation();
  const [isDeleting, begin] = useState(false);
  return (
    <>
      <Menu
        label={`Actions for ${network.name}`}
        choices={[
          may("network_delete", {
            id: "delete",
            label: "Delete\u2026",
            isDangerous: true,
            ...(network.vms > 0
              ? { refusal: `${plural(network.vms, "VM")} is connected to it.` }
              : {}),
            choose: () => begin(true),
          }),
        ]}
      >
        Actions
      </Menu>
      {isDeleting ? (
        <ActionDialog
          title={`Delete ${network.name}`}
          submit="Delete"
          actions={[deleteNetwork(network)]}
          confirm={network.name}
          onClose={() => begin(false)}
          onDone={() => go(addresses.networks)}
          loses={
            <p>
              Its name, its VLAN and the bridges that hosts have it on, and the roles that were
              given for it. The bridges stay.
            </p>
          }
        />
      ) : null}
    </>
  );
}
