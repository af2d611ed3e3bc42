import { Link } from "wouter";
import { useAsk } from "../../api/ask";
import { addresses } from "../../app/addresses";
import { ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { TaskLine } from "../tasks/TaskLine";

const SHOWN_MAX = 6;

export function TasksPanel() {
  const { data, error, isPending } = useAsk(
    "task_list",
    { query: { limit: SHOWN_MAX } },
    { keep: true },
  );
  return (
    <Panel title="Latest tasks" isFlush aside={<Link href={addresses.tasks}>All</Link>}>
      {error === null ? null : <ProblemNote problem={error} />}
      {isPending ? <Waiting /> : null}
      {data?.items.length === 0 ? (
        <p className="panel-line soft">Nothing has been done yet.</p>
      ) : null}
      <ul className="lines">
        {data?.items.map((task) => (
          <li key={task.id}>
            <TaskLine task={task} />
          </li>
        ))}
      </ul>
    </Panel>
  );
}
