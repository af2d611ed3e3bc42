import { Link } from "wouter";
import { useAsk } from "../../api/ask";
import { addresses } from "../../app/addresses";
import { ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { Mark } from "../../ui/Status";
import { AlarmLines } from "../alarms/AlarmLines";

const SHOWN_MAX = 5;

export function AlarmsPanel() {
  const { data, error, isPending } = useAsk("alarm_list", { query: { limit: 1000 } });
  const all =
    data === undefined || data.total === 0 ? null : (
      <Link href={addresses.alarms}>All {data.total}</Link>
    );
  return (
    <Panel title="Alarms" isFlush aside={all}>
      {error === null ? null : <ProblemNote problem={error} />}
      {isPending ? <Waiting /> : null}
      {data?.items.length === 0 ? (
        <p className="panel-line">
          <Mark tone="good" shape="tick">
            Nothing is wrong
          </Mark>
        </p>
      ) : null}
      {data === undefined ? null : <AlarmLines alarms={data.items} max={SHOWN_MAX} />}
    </Panel>
  );
}
