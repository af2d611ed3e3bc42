import { useAsk } from "../../api/ask";
import { Empty, ProblemNote, Waiting } from "../../ui/Notes";
import { Panel, ScreenHead } from "../../ui/Panel";
import { useTitle } from "../../shell/useTitle";
import { EventLines } from "./EventLines";

const SHOWN_MAX = 200;

export default function Events() {
  useTitle("Events");
  const { data, error, isPending, refetch } = useAsk(
    "event_list",
    { query: { limit: SHOWN_MAX } },
    { keep: true },
  );
  return (
    <>
      <ScreenHead title="Events" />
      <Panel title={`The last ${SHOWN_MAX}, newest first`} isFlush>
        {error === null ? null : <ProblemNote problem={error} retry={() => void refetch()} />}
        {isPending ? <Waiting lines={6} /> : null}
        {data?.items.length === 0 ? <Empty icon="event" title="Nothing has happened yet" /> : null}
        {data === undefined ? null : <EventLines events={data.items} />}
      </Panel>
    </>
  );
}
