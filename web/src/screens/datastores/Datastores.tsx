import { useState } from "react";
import { Link } from "wouter";
import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { bytes, count, plural } from "../../lib/units";
import { useTitle } from "../../shell/useTitle";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Meter } from "../../ui/Meter";
import { Empty } from "../../ui/Notes";
import { Panel, ScreenHead } from "../../ui/Panel";
import { Table, type Column } from "../../ui/Table";
import { AddDialog } from "./AddDialog";
import { DatastoreMark } from "./DatastoreMark";
import { FULL_FROM } from "./full";

export default function Datastores() {
  useTitle("Datastores");
  const asked = useAsk("datastore_list", { query: { limit: 1000 } }, { everyMs: 30_000 });
  const [isAdding, add] = useState(false);
  return (
    <>
      <ScreenHead
        title="Datastores"
        actions={
          <MayButton operation="datastore_add" look="primary" icon="plus" onPress={() => add(true)}>
            Add a datastore&hellip;
          </MayButton>
        }
      />
      <Panel
        title={asked.data === undefined ? "Where disks are" : plural(asked.data.total, "datastore")}
        isFlush
      >
        <Listed
          asked={asked}
          empty={
            <Empty icon="datastore" title="There is no datastore yet">
              A directory of a host, or a pool of a Ceph cluster, holds the disks of VMs. On the
              host: <code>mkdir -p /srv/vms</code>, then add it here.
            </Empty>
          }
        >
          {(stores) => (
            <Table label="Datastores" columns={COLUMNS} rows={stores} keyOf={({ id }) => id} />
          )}
        </Listed>
      </Panel>
      {isAdding ? <AddDialog onClose={() => add(false)} /> : null}
    </>
  );
}

const COLUMNS: readonly Column<Schemas["Datastore"]>[] = [
  { name: "Name", cell: ({ name }) => <Link href={addresses.datastore(name)}>{name}</Link> },
  { name: "State", cell: ({ state }) => <DatastoreMark state={state} /> },
  {
    name: "Kind",
    cell: ({ ceph }) =>
      ceph === undefined || ceph === null ? "Directory" : `Ceph pool ${ceph.pool}`,
  },
  {
    name: "Space used",
    cell: ({ total_bytes, free_bytes }) =>
      total_bytes === 0 ? (
        "unknown"
      ) : (
        <Meter
          label="Space"
          used={total_bytes - free_bytes}
          total={total_bytes}
          show={bytes}
          fullFrom={FULL_FROM}
        />
      ),
  },
  {
    name: "If all disks were full",
    isNumber: true,
    cell: ({ provisioned_bytes }) => bytes(provisioned_bytes),
  },
  { name: "VMs", isNumber: true, cell: ({ vms }) => count(vms) },
  { name: "Hosts", cell: ({ hosts = [] }) => hosts.map(({ host }) => host).join(", ") },
];
