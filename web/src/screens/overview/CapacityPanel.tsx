import { Link } from "wouter";
import { useAsk } from "../../api/ask";
import { addresses } from "../../app/addresses";
import { bytes } from "../../lib/units";
import { sentence } from "../../lib/words";
import { Meter } from "../../ui/Meter";
import { Empty, ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { trendWords } from "../datastores/trend";

const SHOWN_MAX = 8;
/** The alarm `datastore_full` is raised there. */
const DATASTORE_FULL = 0.95;

export function CapacityPanel({ withHosts }: { withHosts: boolean }) {
  const stores = useAsk("datastore_list", { query: { limit: 1000 } });
  const hosts = useAsk("host_list", { query: { limit: 1000 } }, { enabled: withHosts });
  const fullest = [...(stores.data?.items ?? [])]
    .sort((one, other) => shareOf(other) - shareOf(one))
    .slice(0, SHOWN_MAX);
  const memory = (hosts.data?.items ?? []).reduce(
    (sum, host) => ({
      used: sum.used + host.memory_bytes - host.memory_free_bytes,
      total: sum.total + host.memory_bytes,
    }),
    { used: 0, total: 0 },
  );
  return (
    <Panel title="Capacity">
      <div className="stack">
        {stores.error === null ? null : <ProblemNote problem={stores.error} />}
        {stores.isPending ? <Waiting /> : null}
        {withHosts && memory.total > 0 ? (
          <Meter label="Memory of all hosts" used={memory.used} total={memory.total} show={bytes} />
        ) : null}
        {fullest.map(({ id, name, total_bytes, free_bytes, trend }) => (
          <div key={id}>
            <Meter
              label={`Datastore ${name}`}
              used={total_bytes - free_bytes}
              total={total_bytes}
              show={bytes}
              fullFrom={DATASTORE_FULL}
            />
            <p className="small soft">
              <Link href={addresses.datastore(name)}>{sentence(trendWords(trend))}</Link>
            </p>
          </div>
        ))}
        {stores.data?.items.length === 0 ? (
          <Empty icon="datastore" title="There is no datastore yet">
            <code>strongroom datastore add vms /srv/vms</code> makes a directory one.
          </Empty>
        ) : null}
      </div>
    </Panel>
  );
}

function shareOf({ total_bytes, free_bytes }: { total_bytes: number; free_bytes: number }): number {
  return total_bytes > 0 ? 1 - free_bytes / total_bytes : 0;
}
