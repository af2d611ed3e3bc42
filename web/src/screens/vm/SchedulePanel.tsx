import { useState } from "react";
import { commandLine } from "../../actions/action";
import { useRun } from "../../actions/run";
import { removeRule } from "../../actions/schedule";
import { useAsk } from "../../api/ask";
import type { Schemas, Vm } from "../../api/types";
import { duration, plural } from "../../lib/units";
import { Button } from "../../ui/Button";
import { ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { When } from "../../ui/When";
import { RuleDialog } from "./dialogs/RuleDialog";
import { useVmRefusal } from "./useVmRefusal";

const MS = 1_000;

/** When snapshots are made automatically, and what came of it. */
export function SchedulePanel({ vm }: { vm: Vm }) {
  const { data, error, isPending } = useAsk("vm_snapshot_schedule_show", { path: { vm: vm.name } });
  const [isAsked, ask] = useState(false);
  const run = useRun();
  const refused = useVmRefusal(vm)("vm_snapshot_schedule_set");
  const rules = (data?.rules ?? []).map(({ rule }) => rule);
  return (
    <Panel
      title="Schedule"
      isFlush
      aside={
        <Button
          icon="plus"
          look="quiet"
          why={refused}
          isDisabled={data === undefined}
          onPress={() => ask(true)}
        >
          Add a rule&hellip;
        </Button>
      }
    >
      {error === null ? null : <ProblemNote problem={error} />}
      {isPending ? <Waiting /> : null}
      {data?.rules.length === 0 ? (
        <p className="panel-line soft">
          No snapshot is made by itself. A rule makes one in each period, and keeps the newest.
        </p>
      ) : null}
      <ul className="lines">
        {data?.rules.map((scheduled) => {
          const end = removeRule(vm.name, rules, scheduled.rule.every_s);
          return (
            <li key={scheduled.name} className="line">
              <RuleWords scheduled={scheduled} />
              <Button
                look="quiet"
                why={refused}
                aria-label={`End ${scheduled.name}`}
                aria-description={commandLine(end)}
                onPress={() => void run([end])}
              >
                End
              </Button>
            </li>
          );
        })}
      </ul>
      {isAsked ? <RuleDialog vm={vm} rules={rules} onClose={() => ask(false)} /> : null}
    </Panel>
  );
}

function RuleWords({
  scheduled: { name, rule, kept, next_unix_seconds, last, waits },
}: {
  scheduled: Schemas["ScheduledRule"];
}) {
  return (
    <div className="line-words">
      <span>
        <strong>{name}</strong>: every {duration(rule.every_s)}, {plural(kept, "snapshot")} of{" "}
        {rule.keep} kept
      </span>
      <span className="small soft">
        next <When ms={next_unix_seconds * MS} />
        {typeof waits === "string" ? `, waits: ${waits}` : ""}
        {last === undefined || last === null ? "" : `; last: ${outcomeInWords(last.outcome)}`}
      </span>
    </div>
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
