import { Link, useParams } from "wouter";
import { commandLine } from "../../actions/action";
import { cancelTask } from "../../actions/tasks";
import { useRun } from "../../actions/run";
import { Migration } from "../migration/Migration";
import { asProblem, Problem } from "../../api/problem";
import { addresses, addressOfObject } from "../../app/addresses";
import { duration, moment } from "../../lib/units";
import { Button } from "../../ui/Button";
import { Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Facts, Panel, ScreenHead } from "../../ui/Panel";
import { TaskMark } from "../../ui/Status";
import { useTitle } from "../../shell/useTitle";
import { UploadNote } from "../../upload/UploadNote";
import { TaskProgress } from "./TaskProgress";
import { useTask } from "./useTask";

export default function TaskScreen() {
  const { task: id = "" } = useParams<{ task: string }>();
  const { data: task, error, isPending } = useTask(id);
  useTitle(task?.title ?? "Task");
  const run = useRun();

  if (isPending) return <Waiting lines={6} />;
  if (error !== null) return <ProblemNote problem={asProblem(error)} />;
  const to = addressOfObject(task.object);
  const { error: failure } = task;
  const cancel = cancelTask(task);
  return (
    <>
      <ScreenHead
        title={task.title}
        above={<Link href={addresses.tasks}>Tasks</Link>}
        beside={<TaskMark state={task.state} />}
        actions={
          task.state === "running" ? (
            <Button
              isDisabled={task.cancelling}
              onPress={() => void run([cancel])}
              aria-description={commandLine(cancel)}
            >
              {task.cancelling ? "Is being cancelled" : "Cancel"}
            </Button>
          ) : null
        }
      />
      {failure === undefined || failure === null ? null : (
        <ProblemNote
          problem={new Problem(failure.code, failure.message, failure.next_step ?? undefined)}
        />
      )}
      {typeof task.note === "string" ? <Note>{task.note}</Note> : null}
      <Panel title="Task">
        <div className="stack">
          {task.state === "running" ? <TaskProgress task={task} /> : null}
          <UploadNote task={task} />
          <Facts
            facts={[
              {
                label: "Object",
                value:
                  to === undefined ? task.object.name : <Link href={to}>{task.object.name}</Link>,
              },
              {
                label: "By",
                value: typeof task.from === "string" ? `${task.by} from ${task.from}` : task.by,
              },
              { label: "Began", value: moment(task.created_unix_ms) },
              typeof task.ended_unix_ms === "number"
                ? {
                    label: "Ended",
                    value: `${moment(task.ended_unix_ms)}, after ${duration((task.ended_unix_ms - task.created_unix_ms) / 1000)}`,
                  }
                : undefined,
              { label: "Id", value: <code>{task.id}</code> },
            ]}
          />
        </div>
      </Panel>
      <Migration task={task.id} passing={task.progress?.passing} />
    </>
  );
}
