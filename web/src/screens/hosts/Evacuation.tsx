import { useState } from "react";
import { useAsk } from "../../api/ask";
import type { Schemas, Task, VmSummary } from "../../api/types";
import { plural } from "../../lib/units";
import { Note } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { TaskLine } from "../tasks/TaskLine";
import { useTask } from "../tasks/useTask";
import { RunningTask } from "../vm/RunningTask";

type Host = Schemas["Host"];

const LISTED_MAX = 200;
/** Progress has no events. */
const EVERY_MS = 2_000;

/** What works on a host, and the VMs that move away from it. */
export function HostTasks({ host, vms }: { host: Host; vms: readonly VmSummary[] }) {
  const request = { query: { state: "running", limit: LISTED_MAX } } as const;
  const first = useAsk("task_list", request, { keep: true });
  const isMoving = movesOf(first.data?.items ?? [], vms).length > 0;
  const asked = useAsk(
    "task_list",
    request,
    isMoving ? { keep: true, everyMs: EVERY_MS } : { keep: true },
  );
  const running = asked.data?.items ?? [];
  const own = running.filter(({ object }) => object.kind === "host" && object.id === host.id);
  const moves = movesOf(running, vms);
  const evacuation = own.find(({ kind }) => kind === "host_evacuate")?.id;
  // What became of it is shown until somebody leaves.
  const [last, setLast] = useState(evacuation);
  if (evacuation !== undefined && evacuation !== last) setLast(evacuation);
  return (
    <>
      {own.map(({ id }) => (
        <RunningTask key={id} task={id} />
      ))}
      {last === undefined || last === evacuation ? null : <Ended task={last} left={vms.length} />}
      {moves.length === 0 ? null : (
        <Panel title={`${plural(moves.length, "VM")} moving away`} isFlush>
          <ul className="lines">
            {moves.map((task) => (
              <li key={task.id}>
                <TaskLine task={task} />
              </li>
            ))}
          </ul>
        </Panel>
      )}
    </>
  );
}

/** The moves of VMs that are at the host still. */
function movesOf(tasks: readonly Task[], vms: readonly VmSummary[]): readonly Task[] {
  const here = new Set(vms.map(({ id }) => id));
  return tasks.filter(
    ({ kind, object }) =>
      kind === "vm_move_host" && typeof object.id === "string" && here.has(object.id),
  );
}

function Ended({ task: id, left }: { task: string; left: number }) {
  const { data: task } = useTask(id);
  if (task === undefined || task.state === "running") return null;
  const isDone = task.state === "done";
  return (
    <Note
      tone={isDone ? "good" : "warning"}
      title={
        isDone
          ? "The evacuation is done: the host is in maintenance, and no VM is placed on it"
          : `The evacuation has ended, and ${plural(left, "VM")} stay here`
      }
    >
      <TaskLine task={task} />
    </Note>
  );
}
