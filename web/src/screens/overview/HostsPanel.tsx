import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { bytes, plural } from "../../lib/units";
import { ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { HostMark } from "../hosts/HostMark";

const SHOWN_MAX = 8;

/** What needs somebody comes first. */
function rank({ state, maintenance }: Schemas["Host"]): number {
  if (state !== "connected") return 0;
  return maintenance === true ? 1 : 2;
}

export function HostsPanel() {
  const { data, error, isPending } = useAsk("host_list", { query: { limit: 1000 } });
  const shown = [...(data?.items ?? [])]
    .sort((one, other) => rank(one) - rank(other))
    .slice(0, SHOWN_MAX);
  const aside =
    data === undefined ? null : <span className="soft">{plural(data.total, "host")}</span>;
  return (
    <Panel title="Hosts" isFlush aside={aside}>
      {error === null ? null : <ProblemNote problem={error} />}
      {isPending ? <Waiting /> : null}
      <ul className="lines">
        {shown.map((host) => (
          <li key={host.id} className="line">
            <div className="line-words">
              <strong>{host.name}</strong>
              <span className="small soft">
                {plural(host.vms_running, "VM")} running, {bytes(host.memory_free_bytes)} of{" "}
                {bytes(host.memory_bytes)} memory free
              </span>
            </div>
            <HostMark host={host} />
          </li>
        ))}
      </ul>
    </Panel>
  );
}
