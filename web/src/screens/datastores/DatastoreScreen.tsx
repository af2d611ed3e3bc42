import { useState } from "react";
import { Link, useLocation, useParams } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { removeDatastore } from "../../actions/datastore";
import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { bytes, count, plural } from "../../lib/units";
import { useMay } from "../../session/useMay";
import { Nowhere } from "../../shell/Nowhere";
import { useTitle } from "../../shell/useTitle";
import { Listed } from "../../ui/Listed";
import { Menu } from "../../ui/Menu";
import { Meter } from "../../ui/Meter";
import { Empty, Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Facts, Panel, ScreenHead } from "../../ui/Panel";
import { Table, type Column } from "../../ui/Table";
import { Tabs } from "../../ui/Tabs";
import { CapacityHistory } from "./CapacityHistory";
import { ContentsTab } from "./ContentsTab";
import { DatastoreMark } from "./DatastoreMark";
import { FULL_FROM } from "./full";
import { HostsPanel } from "./HostsPanel";
import { usesOf, type Use } from "./space";

type Datastore = Schemas["Datastore"];

const USES_SHOWN = 50;

export default function DatastoreScreen() {
  const { datastore: name = "", tab = "" } = useParams<{ datastore: string; tab?: string }>();
  const asked = useAsk("datastore_show", { path: { datastore: name } });
  const store = asked.data;
  useTitle(store?.name ?? name);
  if (asked.error?.code === "not_found" || (tab !== "" && tab !== "contents")) return <Nowhere />;
  if (store === undefined) {
    return asked.error === null ? (
      <Waiting lines={8} label={`Loading ${name}`} />
    ) : (
      <ProblemNote problem={asked.error} retry={() => void asked.refetch()} />
    );
  }
  return (
    <>
      <ScreenHead
        title={store.name}
        above={<Link href={addresses.datastores}>Datastores</Link>}
        beside={<DatastoreMark state={store.state} />}
        actions={<DatastoreActions store={store} />}
      />
      <Tabs
        label={`Parts of ${store.name}`}
        tabs={[
          { label: "Summary", to: addresses.datastore(store.name) },
          { label: "Contents", to: addresses.datastore(store.name, "contents") },
        ]}
      />
      {tab === "contents" ? <ContentsTab store={store} /> : <SummaryTab store={store} />}
    </>
  );
}

function SummaryTab({ store }: { store: Datastore }) {
  return (
    <>
      <div className="halves">
        <Space store={store} />
        <Kind store={store} />
      </div>
      <CapacityHistory store={store} />
      <HostsPanel store={store} />
      <Uses store={store} />
    </>
  );
}

function Space({
  store: { total_bytes, free_bytes, provisioned_bytes, vms },
}: {
  store: Datastore;
}) {
  const beyond = provisioned_bytes - total_bytes;
  return (
    <Panel title="Space">
      <div className="stack">
        <Meter
          label="Used of its file system"
          used={total_bytes - free_bytes}
          total={total_bytes}
          show={bytes}
          fullFrom={FULL_FROM}
        />
        <Meter
          label="If all of its VMs&rsquo; disks were full"
          used={provisioned_bytes}
          total={total_bytes}
          show={bytes}
          fullFrom={1}
        />
        {beyond > 0 ? (
          <Note tone="warning" title={`${bytes(beyond)} more is promised than there is`}>
            VMs whose writes find no space stand still until there is some. Watch the alarm for
            overcommitment, or move disks elsewhere.
          </Note>
        ) : null}
        <Facts
          facts={[
            { label: "Free", value: bytes(free_bytes) },
            { label: "VMs", value: count(vms) },
          ]}
        />
      </div>
    </Panel>
  );
}

function Kind({ store: { ceph, path, id, redundancy } }: { store: Datastore }) {
  const isCeph = ceph !== undefined && ceph !== null;
  return (
    <Panel title="What it is">
      <Facts
        facts={[
          { label: "Kind", value: isCeph ? "Pools of a Ceph cluster" : "Directory" },
          ...(isCeph
            ? [
                { label: "Pool", value: <code>{ceph.pool}</code> },
                {
                  label: "Data pool",
                  value:
                    typeof ceph.data_pool === "string" ? <code>{ceph.data_pool}</code> : "the same",
                },
                { label: "Namespace", value: <code>{ceph.namespace}</code> },
              ]
            : [{ label: "Path", value: <code>{path}</code> }]),
          {
            label: "Losses",
            value:
              redundancy === undefined || redundancy === null
                ? "not known: as its file system and disks"
                : `all data outlives ${plural(redundancy.losses_survived, "loss", "losses")} at one time, and is still served after ${count(redundancy.losses_served)}`,
          },
          { label: "Id", value: <code>{id}</code> },
        ]}
      />
    </Panel>
  );
}

function Uses({ store }: { store: Datastore }) {
  const asked = useAsk("volume_list", { query: { datastore: store.name, limit: 1000 } });
  return (
    <Panel title="What its space is used for" isFlush>
      <Listed
        asked={asked}
        empty={
          <Empty icon="disk" title="Nothing yet">
            The disks of VMs that are created here, and their snapshots, take space as they are
            written.
          </Empty>
        }
      >
        {(volumes) => {
          const uses = usesOf(volumes);
          return (
            <>
              <Table
                label="Uses, the largest first"
                columns={USES}
                rows={uses.slice(0, USES_SHOWN)}
                keyOf={({ owner }) => owner}
              />
              {uses.length > USES_SHOWN ? (
                <p className="panel-line soft">
                  and {count(uses.length - USES_SHOWN)} smaller ones
                </p>
              ) : null}
            </>
          );
        }}
      </Listed>
    </Panel>
  );
}

const USES: readonly Column<Use>[] = [
  {
    name: "VM or disk",
    cell: ({ owner, isVm }) =>
      isVm ? <Link href={addresses.vm(owner, "disks")}>{owner}</Link> : `${owner} (no VM has it)`,
  },
  { name: "Disks", isNumber: true, cell: ({ volumes }) => count(volumes) },
  { name: "Size", isNumber: true, cell: ({ size }) => bytes(size) },
  {
    name: "Takes, with snapshots",
    isNumber: true,
    cell: ({ committed, unread }) =>
      unread > 0 ? `${bytes(committed)}, ${count(unread)} not read yet` : bytes(committed),
  },
];

function DatastoreActions({ store }: { store: Datastore }) {
  const may = useMay();
  const [, go] = useLocation();
  const [isRemoving, remove] = useState(false);
  return (
    <>
      <Menu
        label={`Actions for ${store.name}`}
        choices={[
          may("datastore_scan", {
            id: "scan",
            label: "Compare with the inventory",
            hint: "Finds VMs that nobody registered",
            choose: () => go(addresses.datastore(store.name, "contents")),
          }),
          may("datastore_remove", {
            id: "remove",
            label: "Remove\u2026",
            hint: "Its files stay",
            isDangerous: true,
            ...(store.vms > 0
              ? { refusal: `It has ${plural(store.vms, "VM")}: move or delete them first.` }
              : {}),
            choose: () => remove(true),
          }),
        ]}
      >
        Actions
      </Menu>
      {isRemoving ? (
        <ActionDialog
          title={`Remove ${store.name}`}
          submit="Remove"
          actions={[removeDatastore(store)]}
          confirm={store.name}
          onClose={() => remove(false)}
          onDone={() => go(addresses.datastores)}
          loses={
            <p>
              Its place in the inventory. Its files stay where they are, and it can be added again.
            </p>
          }
        />
      ) : null}
    </>
  );
}
