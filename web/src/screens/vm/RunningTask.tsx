import { Link } from "wouter";
import { commandLine } from "../../actions/action";
import { useRun } from "../../actions/run";
import { cancelTask } from "../../actions/tasks";
import { addresses } from "../../app/addresses";
import { Button } from "../../ui/Button";
import { UploadNote } from "../../upload/UploadNote";
import { TaskProgress } from "../tasks/TaskProgress";
import { useTask } from "../tasks/useTask";

interface Props {
  task: string;
  /** What is said of the VM already, and not said again. */
  said?: string | null | undefined;
}

/** The task that works on a VM, with how far it is. */
export function RunningTask({ task: id, said }: Props) {
  const { data: task } = useTask(id);
  const run = useRun();
  if (task?.state !== "running") return null;
  const cancel = cancelTask(task);
  return (
    <div className="note note-notice" role="status">
      <div className="note-words">
        <p className="note-title">
          <Link href={addresses.task(id)}>{task.title}</Link>
          {task.cancelling ? ", which is being cancelled" : ""}
        </p>
        {typeof task.note === "string" && task.note !== said ? <p>{task.note}</p> : null}
        <TaskProgress task={task} />
        <UploadNote task={task} />
      </div>
      <Button
        isDisabled={task.cancelling}
        onPress={() => void run([cancel])}
        aria-description={commandLine(cancel)}
      >
        Cancel
      </Button>
    </div>
  );
}
