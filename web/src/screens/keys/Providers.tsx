import { Link } from "wouter";
import { useAsk } from "../../api/ask";
import type { Schemas, VmSummary } from "../../api/types";
import { addresses } from "../../app/addresses";
import { useEstate } from "../../live/useLive";
import { plural } from "../../lib/units";
import { sentence } from "../../lib/words";
import { CodeLine } from "../../ui/CodeLine";
import { Listed } from "../../ui/Listed";
import { Empty } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { Mark } from "../../ui/Status";
import { Table, type Column } from "../../ui/Table";
import { When } from "../../ui/When";

type Provider = Schemas["KeyProvider"];

const MS = 1_000;

const KINDS: Readonly<Record<string, string>> = {
  embedded: "Key server of Strongroom",
  kmip: "KMIP servers",
  vault: "Vault or OpenBao",
};

export function Providers() {
  const asked = useAsk("key_provider_list", { query: { limit: 1000 } }, { everyMs: 15_000 });
  const { vms } = useEstate();
  const waiting = vms.filter(({ power }) => power === "key_unavailable");
  return (
    <>
      {waiting.length === 0 ? null : (
        <Panel title={`${plural(waiting.length, "VM")} that wait for a key`} isFlush>
          <Table label="VMs that wait" columns={WAITING} rows={waiting} keyOf={({ id }) => id} />
        </Panel>
      )}
      <Panel title="Where keys are" isFlush>
        <Listed
          asked={asked}
          empty={
            <Empty icon="key" title="There is no key provider">
              Without one no VM can be encrypted. It is set up on the control plane&rsquo;s machine,
              by the commands below.
            </Empty>
          }
        >
          {(providers) => (
            <Table
              label="Key providers"
              columns={COLUMNS}
              rows={providers}
              keyOf={({ name }) => name}
            />
          )}
        </Listed>
      </Panel>
      <OnTheMachine />
    </>
  );
}

const COLUMNS: readonly Column<Provider>[] = [
  { name: "Name", cell: ({ name }) => <strong>{name}</strong> },
  { name: "Kind", cell: ({ kind }) => KINDS[kind] ?? kind },
  {
    name: "State",
    cell: ({ healthy }) =>
      healthy ? (
        <Mark tone="good" shape="tick">
          Answers
        </Mark>
      ) : (
        <Mark tone="bad" shape="cross">
          Does not answer
        </Mark>
      ),
  },
  {
    name: "Certificate ends",
    cell: ({ certificate_expires_unix_seconds: ends }) =>
      typeof ends === "number" ? <When ms={ends * MS} /> : "unknown",
  },
  {
    name: "Last backup",
    cell: ({ last_backup_unix_seconds: last }) =>
      last === undefined || last === null ? (
        "its operator\u2019s matter"
      ) : last === 0 ? (
        <Mark tone="warning" shape="triangle">
          Never
        </Mark>
      ) : (
        <When ms={last * MS} />
      ),
  },
  {
    name: "What to look at",
    cell: ({ reason }) => (typeof reason === "string" ? sentence(reason) : ""),
  },
];

const WAITING: readonly Column<VmSummary>[] = [
  { name: "VM", cell: ({ name }) => <Link href={addresses.vm(name, "keys")}>{name}</Link> },
  { name: "Host", cell: ({ host }) => host ?? "" },
  {
    name: "For what",
    cell: ({ reason }) => (typeof reason === "string" ? sentence(reason) : "its key"),
  },
];

/** What the API has no part in: root sets key servers up. */
function OnTheMachine() {
  return (
    <Panel title="On the control plane&rsquo;s machine">
      <div className="stack">
        <p>
          Key servers and providers are set up by root, from a terminal. The API, and so this page,
          changes none of them: somebody who takes over an account here gets no further than the
          roles that it has, and to no key.
        </p>
        <CodeLine label="Add" text="strongroom key-provider add NAME --kmip HOST --ca ca.pem" />
        <CodeLine label="Test" text="strongroom key-provider test NAME" />
        <CodeLine label="Back up" text="strongroom keyserver backup" />
        <CodeLine label="State" text="strongroom keyserver status" />
        <CodeLine label="History" text="strongroom key history KEY" />
        <CodeLine label="Destroy" text="strongroom key destroy KEY --reason TEXT --delay 7d" />
        <p className="soft">
          A destruction is refused with the list of what still needs the key, waits for its delay,
          and takes a second administrator: <code>strongroom key destroy KEY --confirm</code>.
        </p>
      </div>
    </Panel>
  );
}
