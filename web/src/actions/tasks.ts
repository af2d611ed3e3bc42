import type { Task } from "../api/types";
import { capital, words } from "../lib/words";
import { action, type Action } from "./action";

export function cancelTask({ id, kind, object }: Task): Action {
  return action(`Cancel ${words(kind)} of ${object.name}`, "task_cancel", { path: { task: id } }, [
    "task",
    "cancel",
    id,
  ]);
}

export function taskTitle({ kind, object }: Task): string {
  return `${capital(words(kind))} ${object.name}`;
}
