import { Link } from "wouter";
import type { Task } from "../../api/types";
import { addresses } from "../../app/addresses";
import { TaskMark } from "../../ui/Status";
import { When } from "../../ui/When";
import { passingInWords } from "../migration/passing";
import { TaskProgress } from "./TaskProgress";

/** A task in a few words, with how far it is. */
export function TaskLine({ task, onFollowed }: { task: Task; onFollowed?: () => void }) {
  const { id, title, state, error, note, ended_unix_ms, created_unix_ms } = task;
  const passing = task.progress?.passing;
  return (
    <div className="line">
      <div className="line-words">
        <Link
          href={addresses.task(id)}
          {...(onFollowed === undefined ? {} : { onClick: onFollowed })}
        >
          {title}
        </Link>
        <span className="buttons">
          <TaskMark state={state} />
        </span>
        {state === "running" ? <TaskProgress task={task} /> : null}
        {state === "running" && passing !== undefined && passing !== null ? (
          <span className="small">{passingInWords(passing)}</span>
        ) : null}
        {typeof error?.message === "string" ? <span className="small">{error.message}</span> : null}
        {typeof note === "string" && state === "running" ? (
          <span className="small soft">{note}</span>
        ) : null}
      </div>
      <span className="line-end">
        <When ms={ended_unix_ms ?? created_unix_ms} />
      </span>
    </div>
  );
}
