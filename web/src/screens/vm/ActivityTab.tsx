import { useAsk } from "../../api/ask";
import type { Vm } from "../../api/types";
import { ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { EventLines } from "../events/EventLines";
import { TaskLine } from "../tasks/TaskLine";

const TASKS_MAX = 30;
const EVENTS_MAX = 100;

export function ActivityTab({ vm }: { vm: Vm }) {
  const tasks = useAsk("task_list", { query: { object: vm.id, limit: TASKS_MAX } });
  const events = useAsk("event_list", { query: { object: vm.id, limit: EVENTS_MAX } });
  return (
    <div className="halves">
      <Panel title="Tasks" isFlush>
        {tasks.error === null ? null : <ProblemNote problem={tasks.error} />}
        {tasks.isPending ? <Waiting /> : null}
        <ul className="lines">
          {tasks.data?.items.map((task) => (
            <li key={task.id}>
              <TaskLine task={task} />
            </li>
          ))}
        </ul>
      </Panel>
      <Panel title="Events" isFlush>
        {events.error === null ? null : <ProblemNote problem={events.error} />}
        {events.isPending ? <Waiting /> : null}
        {events.data === undefined ? null : <EventLines events={events.data.items} />}
      </Panel>
    </div>
  );
}
