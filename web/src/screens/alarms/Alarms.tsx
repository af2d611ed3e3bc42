import { useAsk } from "../../api/ask";
import { Empty, ProblemNote, Waiting } from "../../ui/Notes";
import { Panel, ScreenHead } from "../../ui/Panel";
import { useTitle } from "../../shell/useTitle";
import { AlarmLines } from "./AlarmLines";

export default function Alarms() {
  useTitle("Alarms");
  const { data, error, isPending, refetch } = useAsk("alarm_list", { query: { limit: 1000 } });
  return (
    <>
      <ScreenHead title="Alarms" />
      <Panel title={data === undefined ? "Raised now" : `${data.total} raised now`} isFlush>
        {error === null ? null : <ProblemNote problem={error} retry={() => void refetch()} />}
        {isPending ? <Waiting lines={6} /> : null}
        {data?.items.length === 0 ? (
          <Empty icon="alarm" title="Nothing is wrong">
            An alarm is raised when something needs you, and cleared by itself when it no longer
            does.
          </Empty>
        ) : null}
        {data === undefined ? null : <AlarmLines alarms={data.items} />}
      </Panel>
    </>
  );
}
