import type { ReactNode } from "react";
import type { Problem } from "../api/problem";
import { sentence } from "../lib/words";
import { Button } from "./Button";
import { Icon, type IconName } from "./Icon";
import { Prose } from "./Prose";

/** What failed, what to do next, and the id under which the server knows the request. */
export function ProblemNote({ problem, retry }: { problem: Problem; retry?: () => void }) {
  return (
    <div className="note note-bad" role="alert">
      <Icon name="alarm" />
      <div className="note-words">
        <p className="note-title">
          <Prose text={sentence(problem.message)} />
        </p>
        {problem.nextStep === undefined ? null : (
          <p>
            <Prose text={sentence(problem.nextStep)} />
          </p>
        )}
        <p className="small soft">
          <code>{problem.code}</code>
          {problem.request === undefined ? null : (
            <>
              {" "}
              request <code>{problem.request}</code>
            </>
          )}
        </p>
      </div>
      {retry === undefined ? null : (
        <Button onPress={retry} look="plain">
          Try again
        </Button>
      )}
    </div>
  );
}

type Tone = "notice" | "warning" | "bad" | "good";

export function Note({
  tone = "notice",
  title,
  children,
}: {
  tone?: Tone;
  title?: string;
  children?: ReactNode;
}) {
  return (
    <div className={`note note-${tone}`}>
      <Icon name={tone === "notice" || tone === "good" ? "info" : "alarm"} />
      <div className="note-words">
        {title === undefined ? null : <p className="note-title">{title}</p>}
        {children}
      </div>
    </div>
  );
}

/** A place where there is nothing yet, and what would bring something there. */
export function Empty({
  icon,
  title,
  children,
  action,
}: {
  icon: IconName;
  title: string;
  children?: ReactNode;
  action?: ReactNode;
}) {
  return (
    <div className="empty">
      <Icon name={icon} size={28} />
      <p className="empty-title">{title}</p>
      {children === undefined ? null : <div className="empty-words">{children}</div>}
      {action}
    </div>
  );
}

export function Waiting({ lines = 3, label = "Loading" }: { lines?: number; label?: string }) {
  return (
    <div className="waiting" role="status">
      <span className="unseen">{label}</span>
      {Array.from({ length: lines }, (_, line) => (
        <span key={line} className="waiting-line" />
      ))}
    </div>
  );
}
