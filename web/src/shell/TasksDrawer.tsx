import { useAsk } from "../api/ask";
import { addresses } from "../app/addresses";
import { TaskLine } from "../screens/tasks/TaskLine";
import { Dialog } from "../ui/Dialog";
import { Empty, ProblemNote, Waiting } from "../ui/Notes";
import { Link } from "wouter";

const SHOWN = 30;

/** The latest tasks, beside any screen. */
export function TasksDrawer({ onClose }: { onClose: () => void }) {
  const { data, error, refetch } = useAsk("task_list", { query: { limit: SHOWN } });
  return (
    <Dialog title="Tasks" side onClose={onClose}>
      {error === null ? null : <ProblemNote problem={error} retry={() => void refetch()} />}
      {data === undefined && error === null ? <Waiting lines={5} /> : null}
      {data?.items.length === 0 ? (
        <Empty icon="task" title="Nothing has been done yet">
          Each change is a task here, with its progress and its result.
        </Empty>
      ) : null}
      <ul className="task-lines">
        {data?.items.map((task) => (
          <li key={task.id}>
            <TaskLine task={task} onFollowed={onClose} />
          </li>
        ))}
      </ul>
      <p>
        <Link href={addresses.tasks} onClick={onClose}>
          All tasks
        </Link>
      </p>
    </Dialog>
  );
}
