import type { Task } from "../../api/types";
import { bytes, count } from "../../lib/units";
import { Meter } from "../../ui/Meter";

const NEVER_FULL = 2;

export function TaskProgress({ task: { progress } }: { task: Task }) {
  if (progress === undefined || progress === null || progress.total === 0) return null;
  const show = progress.unit === "bytes" ? bytes : count;
  return (
    <Meter
      label="Progress"
      used={progress.done}
      total={progress.total}
      show={show}
      fullFrom={NEVER_FULL}
    />
  );
}
