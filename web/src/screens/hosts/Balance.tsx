import { useState } from "react";
import { Link } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { balanceHosts } from "../../actions/host";
import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { bytes, plural } from "../../lib/units";
import { Needs } from "../../session/Needs";
import { useTitle } from "../../shell/useTitle";
import { MayButton } from "../../ui/MayButton";
import { Meter } from "../../ui/Meter";
import { Empty, Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Panel, ScreenHead } from "../../ui/Panel";
import { Table, type Column } from "../../ui/Table";

export default function Balance() {
  useTitle("Balance");
  return (
    <Needs operation="balance_show">
      <Plan />
    </Needs>
  );
}

function Plan() {
  const { data, error, isPending, refetch } = useAsk("balance_show", {}, { everyMs: 15_000 });
  const [isAsked, ask] = useState(false);
  const plan = data?.plan;
  return (
    <>
      <ScreenHead
        title="Balance"
        above={<Link href={addresses.hosts}>Hosts</Link>}
        actions={
          typeof plan === "string" ? (
            <MayButton operation="hosts_balance" look="primary" onPress={() => ask(true)}>
              Carry out {plural(data?.moves.length ?? 0, "move")}&hellip;
            </MayButton>
          ) : null
        }
      />
      <Note>
        Hosts are balanced when the parts of their memory that running VMs have differ by at most a
        tenth. Hosts that do not answer, or are in maintenance, have no part in it. Nothing moves by
        itself.
      </Note>
      {error === null ? null : <ProblemNote problem={error} retry={() => void refetch()} />}
      {isPending ? <Waiting lines={6} /> : null}
      {data === undefined ? null : (
        <>
          <Panel title="Memory of VMs that run">
            <div className="stack">
              {data.hosts.map((host) => (
                <Load key={host.host} host={host} isMoving={data.moves.length > 0} />
              ))}
              {data.hosts.length === 0 ? <p className="soft">No host takes VMs now.</p> : null}
            </div>
          </Panel>
          <Panel title="Moves" isFlush>
            {data.moves.length === 0 ? (
              <Empty icon="host" title="Nothing to move">
                The hosts are balanced, or no VM can move while it runs.
              </Empty>
            ) : (
              <Table label="Moves" columns={MOVES} rows={data.moves} keyOf={({ vm }) => vm} />
            )}
          </Panel>
        </>
      )}
      {isAsked && typeof plan === "string" ? (
        <ActionDialog
          title="Balance the hosts"
          submit="Move them"
          actions={[balanceHosts(plan, data?.moves.length ?? 0)]}
          onClose={() => ask(false)}
        >
          <p>
            {plural(data?.moves.length ?? 0, "VM")} move while they run, four at a time; their
            guests stand still for a moment at the end of each move. If other moves are planned by
            now, nothing is done.
          </p>
        </ActionDialog>
      ) : null}
    </>
  );
}

function Load({
  host: { host, memory_bytes, running_bytes, after_bytes },
  isMoving,
}: {
  host: Schemas["HostLoad"];
  isMoving: boolean;
}) {
  return (
    <div className="before-after">
      <Meter
        label={isMoving ? `${host} before` : host}
        used={running_bytes}
        total={memory_bytes}
        show={bytes}
      />
      {isMoving ? (
        <Meter label={`${host} after`} used={after_bytes} total={memory_bytes} show={bytes} />
      ) : null}
    </div>
  );
}

const MOVES: readonly Column<Schemas["PlannedMove"]>[] = [
  { name: "VM", cell: ({ name }) => <Link href={addresses.vm(name)}>{name}</Link> },
  { name: "From", cell: ({ from }) => <Link href={addresses.host(from)}>{from}</Link> },
  { name: "To", cell: ({ to }) => <Link href={addresses.host(to)}>{to}</Link> },
  { name: "Memory", isNumber: true, cell: ({ memory_bytes }) => bytes(memory_bytes) },
];
