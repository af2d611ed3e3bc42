import { useState } from "react";
import { Link } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { addDatastoreHost, removeDatastoreHost } from "../../actions/datastore";
import { limitsOf, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { sentence, optional } from "../../lib/words";
import { useRefusal } from "../../session/useMe";
import { Button } from "../../ui/Button";
import { TextField } from "../../ui/Field";
import { HostField } from "../../ui/HostField";
import { MayButton } from "../../ui/MayButton";
import { Panel } from "../../ui/Panel";
import { Table, type Column } from "../../ui/Table";
import { noClient, wayOf } from "./ceph";
import { CephFields } from "./CephFields";
import { DatastoreMark } from "./DatastoreMark";

type Datastore = Schemas["Datastore"];
type DatastoreHost = Schemas["DatastoreHost"];

/** The hosts that reach a datastore, with its state at each. */
export function HostsPanel({ store }: { store: Datastore }) {
  const mayRemove = useRefusal()("datastore_remove_host") === undefined;
  const [isAdding, add] = useState(false);
  const [leaving, leave] = useState<string>();
  const hosts = store.hosts ?? [];
  const columns: readonly Column<DatastoreHost>[] = [
    { name: "Host", cell: ({ host }) => <Link href={addresses.host(host)}>{host}</Link> },
    { name: "State there", cell: ({ state }) => <DatastoreMark state={state} /> },
    { name: "Reason", cell: ({ reason }) => (typeof reason === "string" ? sentence(reason) : "") },
    {
      name: "Reached by",
      cell: ({ path, client }) =>
        client === undefined || client === null ? (
          <code>{path}</code>
        ) : (
          <>
            <code>{client.user}</code>, <code>{client.conf}</code>, <code>{client.keyring}</code>
          </>
        ),
    },
    {
      name: "Actions",
      isUnseen: true,
      cell: ({ host }) =>
        mayRemove && hosts.length > 1 ? (
          <Button look="quiet" onPress={() => leave(host)} aria-label={`End use by ${host}`}>
            End use&hellip;
          </Button>
        ) : null,
    },
  ];
  return (
    <Panel
      title="Hosts that reach it"
      isFlush
      aside={
        <MayButton operation="datastore_add_host" icon="plus" onPress={() => add(true)}>
          Add a host&hellip;
        </MayButton>
      }
    >
      <Table label="Hosts" columns={columns} rows={hosts} keyOf={({ host }) => host} />
      {isAdding ? <AddHostDialog store={store} onClose={() => add(false)} /> : null}
      {leaving === undefined ? null : (
        <ActionDialog
          title={`End the use of ${store.name} by ${leaving}`}
          submit="End use"
          actions={[removeDatastoreHost(store, leaving)]}
          onClose={() => leave(undefined)}
        >
          <p>
            No VM of this datastore is placed on {leaving} from then on. It must have none of its
            VMs now.
          </p>
        </ActionDialog>
      )}
    </Panel>
  );
}

function AddHostDialog({ store, onClose }: { store: Datastore; onClose: () => void }) {
  const isCeph = store.ceph !== undefined && store.ceph !== null;
  const [host, setHost] = useState("");
  const [path, setPath] = useState("");
  const [client, setClient] = useState(noClient);
  const way = isCeph ? wayOf(client) : undefined;
  const pathFault = path === "" ? undefined : textFault(limitsOf("AddDatastoreHost", "path"), path);
  const isReady = host !== "" && (isCeph ? way !== undefined : pathFault === undefined);
  return (
    <ActionDialog
      title={`Have another host use ${store.name}`}
      submit="Add"
      size={isCeph ? "wide" : "narrow"}
      actions={isReady ? [addDatastoreHost(store, host, { path: optional(path), way })] : []}
      onClose={onClose}
    >
      <HostField
        value={host}
        onChange={setHost}
        without={(store.hosts ?? []).map((each) => each.host)}
      />
      {isCeph ? (
        <CephFields draft={client} onChange={setClient} />
      ) : (
        <>
          <TextField
            label="Path there"
            hint="By default the same as on its first host."
            placeholder={store.path}
            value={path}
            onChange={setPath}
            fault={pathFault}
            isCode
            isOptional
          />
          <p className="soft">
            ext4, XFS and btrfs are mounted by one machine at a time; on two they are destroyed.
            File systems of several machines are refused.
          </p>
        </>
      )}
    </ActionDialog>
  );
}
