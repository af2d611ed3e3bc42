import { useAsk } from "../../api/ask";
import type { Schemas, Vm } from "../../api/types";
import { duration, plural } from "../../lib/units";
import { CodeLine } from "../../ui/CodeLine";
import { ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { When } from "../../ui/When";

const MS = 1_000;

/** When snapshots are made automatically, and what came of it. */
export function SchedulePanel({ vm }: { vm: Vm }) {
  const { data, error, isPending } = useAsk("vm_snapshot_schedule_show", { path: { vm: vm.name } });
  return (
    <Panel title="Schedule">
      <div className="stack">
        {error === null ? null : <ProblemNote problem={error} />}
        {isPending ? <Waiting /> : null}
        {data?.rules.length === 0 ? (
          <>
            <p className="soft">
              No snapshot is made automatically. A schedule keeps, for example, one of each of the
              last seven days:
            </p>
            <CodeLine
              label="Command"
              text={`strongroom vm snapshot schedule ${vm.name} --every 1d --keep 7`}
            />
          </>
        ) : null}
        <ul className="stack">
          {data?.rules.map((rule) => (
            <RuleLine key={rule.name} rule={rule} />
          ))}
        </ul>
      </div>
    </Panel>
  );
}

function RuleLine({
  rule: { name, rule, kept, next_unix_seconds, last, waits },
}: {
  rule: Schemas["ScheduledRule"];
}) {
  return (
    <li>
      <strong>{name}</strong>: every {duration(rule.every_s)}, {plural(kept, "snapshot")} of{" "}
      {rule.keep} kept; next <When ms={next_unix_seconds * MS} />
      {typeof waits === "string" ? `, waits: ${waits}` : ""}
      {last === undefined || last === null ? null : (
        <span className="small soft"> last: {outcomeInWords(last.outcome)}</span>
      )}
    </li>
  );
}

function outcomeInWords(outcome: Schemas["RunOutcome"]): string {
  switch (outcome.result) {
    case "made":
      return `made ${outcome.snapshot}`;
    case "skipped":
      return "skipped, the VM was off";
    case "missed":
      return `missed: ${outcome.reason}`;
    case "failed":
      return `failed: ${outcome.reason}`;
  }
}
