import { useState } from "react";
import { Link } from "wouter";
import { useAsk } from "../../api/ask";
import { Problem } from "../../api/problem";
import type { Task, Vm } from "../../api/types";
import { addresses } from "../../app/addresses";
import { duration } from "../../lib/units";
import { sentence } from "../../lib/words";
import { Button } from "../../ui/Button";
import { Note, ProblemNote } from "../../ui/Notes";
import { Prose } from "../../ui/Prose";
import { useTask } from "../tasks/useTask";
import { Migration } from "./Migration";

const EVENTS_MAX = 50;

/** A VM's move to another host, while it goes on and when it has ended before one's eyes. */
export function Moving({ vm }: { vm: Vm }) {
  const [last, setLast] = useState(vm.task ?? undefined);
  // The VM has no task any more when its move has ended.
  if (typeof vm.task === "string" && vm.task !== last) setLast(vm.task);
  return last === undefined ? null : (
    <OfTask key={last} task={last} vm={vm} onDismiss={() => setLast(undefined)} />
  );
}

function OfTask({ task: id, vm, onDismiss }: { task: string; vm: Vm; onDismiss: () => void }) {
  const { data: task } = useTask(id);
  if (task?.kind !== "vm_move_host") return null;
  return (
    <>
      {task.state === "running" ? null : <Ended task={task} vm={vm} onDismiss={onDismiss} />}
      <Migration task={id} passing={task.progress?.passing} />
    </>
  );
}

/** What became of a move. */
function Ended({ task, vm, onDismiss }: { task: Task; vm: Vm; onDismiss: () => void }) {
  const { data } = useAsk("event_list", { query: { object: vm.id, limit: EVENTS_MAX } });
  const told = data?.items.find(
    ({ kind, task: of }) => of === task.id && kind.startsWith("vm.m"),
  )?.message;
  const took =
    typeof task.ended_unix_ms === "number"
      ? ` after ${duration((task.ended_unix_ms - task.created_unix_ms) / 1000)}`
      : "";
  if (task.state === "failed" && task.error !== undefined && task.error !== null) {
    const { code, message, next_step } = task.error;
    return <ProblemNote problem={new Problem(code, message, next_step ?? undefined)} />;
  }
  return (
    <Note
      tone={task.state === "done" ? "good" : "warning"}
      title={
        task.state === "done"
          ? `${vm.name} has moved to ${vm.host ?? "another host"}${took}`
          : `The move of ${vm.name} was cancelled${took}: it goes on at ${vm.host ?? "its host"}`
      }
    >
      {told === undefined ? null : (
        <p>
          <Prose text={sentence(told)} />
        </p>
      )}
      <p className="buttons">
        <Link href={addresses.task(task.id)}>Its task</Link>
        <Button look="quiet" onPress={onDismiss}>
          Dismiss
        </Button>
      </p>
    </Note>
  );
}
