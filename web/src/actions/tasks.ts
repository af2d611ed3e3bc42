import type { Task } from "../api/types";
import { action, type Action } from "./action";

export function cancelTask({ id, title }: Task): Action {
  return action(`Cancel: ${title}`, "task_cancel", { path: { task: id } }, ["task", "cancel", id]);
}
