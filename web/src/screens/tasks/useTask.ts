import { useEffect } from "react";
import { useAsk } from "../../api/ask";
import { remember } from "../migration/passing";

/** Progress has no events, so a task that runs is asked for again. */
const EVERY_MS = 1_000;

/** A task, followed while it runs. */
export function useTask(id: string) {
  const first = useAsk("task_show", { path: { task: id } });
  const isRunning = first.data?.state === "running";
  const asked = useAsk("task_show", { path: { task: id } }, isRunning ? { everyMs: EVERY_MS } : {});
  const { data, dataUpdatedAt } = asked;
  useEffect(() => {
    if (data !== undefined) remember(data, dataUpdatedAt);
  }, [data, dataUpdatedAt]);
  return asked;
}
