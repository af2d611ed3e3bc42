import { CodeLine } from "../ui/CodeLine";
import { commandLine, curlLine, type Action } from "./action";

const SHOWN_MAX = 5;

/** The command line and the API call of each action. */
export function WhatThisDoes({ actions }: { actions: readonly Action[] }) {
  if (actions.length === 0) return null;
  const shown = actions.slice(0, SHOWN_MAX);
  return (
    <details className="what">
      <summary>What this does</summary>
      {shown.map((action) => (
        <div key={action.label} className="what-lines">
          <CodeLine label="Command" text={commandLine(action)} />
          <CodeLine label="API" text={curlLine(action, location.origin)} />
        </div>
      ))}
      {actions.length > SHOWN_MAX ? (
        <p className="small soft">and {actions.length - SHOWN_MAX} more of the same</p>
      ) : null}
    </details>
  );
}
