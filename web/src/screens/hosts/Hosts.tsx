import { useState } from "react";
import { Link } from "wouter";
import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { bytes, count, plural } from "../../lib/units";
import { Needs } from "../../session/Needs";
import { useTitle } from "../../shell/useTitle";
import { ButtonLink } from "../../ui/Button";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Meter } from "../../ui/Meter";
import { Empty } from "../../ui/Notes";
import { Panel, ScreenHead } from "../../ui/Panel";
import { Table, type Column } from "../../ui/Table";
import { CryptoMark } from "./CryptoMark";
import { HostMark } from "./HostMark";
import { JoinDialog } from "./JoinDialog";

export default function Hosts() {
  useTitle("Hosts");
  return (
    <Needs operation="host_list">
      <Found />
    </Needs>
  );
}

function Found() {
  const asked = useAsk("host_list", { query: { limit: 1000 } }, { everyMs: 10_000 });
  const [isJoining, join] = useState(false);
  const total = asked.data?.total ?? 0;
  return (
    <>
      <ScreenHead
        title="Hosts"
        actions={
          <>
            {total > 1 ? <ButtonLink to={addresses.balance}>Balance</ButtonLink> : null}
            <MayButton operation="host_token" look="primary" icon="plus" onPress={() => join(true)}>
              Let a host join&hellip;
            </MayButton>
          </>
        }
      />
      <Panel title={asked.data === undefined ? "Machines" : plural(total, "machine")} isFlush>
        <Listed
          asked={asked}
          empty={
            <Empty icon="host" title="No host yet">
              <code>strongroom serve</code> makes its own machine one; others join with a token.
            </Empty>
          }
        >
          {(hosts) => <Table label="Hosts" columns={COLUMNS} rows={hosts} keyOf={({ id }) => id} />}
        </Listed>
      </Panel>
      {isJoining ? <JoinDialog onClose={() => join(false)} /> : null}
    </>
  );
}

const COLUMNS: readonly Column<Schemas["Host"]>[] = [
  { name: "Name", cell: ({ name }) => <Link href={addresses.host(name)}>{name}</Link> },
  { name: "State", cell: (host) => <HostMark host={host} /> },
  { name: "Memory and disks", cell: ({ crypto_safe }) => <CryptoMark state={crypto_safe} /> },
  { name: "VMs running", isNumber: true, cell: ({ vms_running }) => count(vms_running) },
  { name: "CPUs", isNumber: true, cell: ({ cpus }) => (cpus === 0 ? "unknown" : count(cpus)) },
  {
    name: "Memory used",
    cell: ({ memory_bytes, memory_free_bytes }) =>
      memory_bytes === 0 ? (
        "unknown"
      ) : (
        <Meter
          label="Memory"
          used={memory_bytes - memory_free_bytes}
          total={memory_bytes}
          show={bytes}
        />
      ),
  },
  { name: "Guests run with", isMinor: true, cell: ({ accelerator }) => accelerator ?? "unknown" },
  { name: "Version", isMinor: true, cell: ({ version }) => version ?? "unknown" },
];
