import { useState } from "react";
import { action } from "../../actions/action";
import { ActionDialog } from "../../actions/ActionDialog";
import { setRetention } from "../../actions/site";
import { WhatThisDoes } from "../../actions/WhatThisDoes";
import { useAsk } from "../../api/ask";
import { limitsOf, numberFault } from "../../api/limits";
import { asProblem, type Problem } from "../../api/problem";
import type { Schemas } from "../../api/types";
import { saveAs } from "../../lib/save";
import { bytes, count, duration, moment } from "../../lib/units";
import { Button } from "../../ui/Button";
import { CodeLine } from "../../ui/CodeLine";
import { TextField } from "../../ui/Field";
import { MayButton } from "../../ui/MayButton";
import { Meter } from "../../ui/Meter";
import { Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Facts, Panel } from "../../ui/Panel";
import { bytesOf, sizeFault, SizeField, sizeOf } from "../../ui/SizeField";
import { headsOf } from "./heads";

const DAY_S = 86_400;
/** The alarm `access_log_full` is a warning from there on. */
const ALMOST_FULL = 0.8;

export function IntegrityTab() {
  return (
    <>
      <Verification />
      <div className="halves">
        <Head />
        <Retention />
      </div>
    </>
  );
}

type Outcome =
  | { kind: "report"; report: Schemas["AccessLogReport"]; atMs: number }
  | { kind: "failed"; problem: Problem };

/** Has the control plane verify the whole log. */
function Verification() {
  const [text, setText] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [outcome, setOutcome] = useState<Outcome>();
  const heads = headsOf(text);
  const verify = action(
    "Verify the access log",
    "access_log_verify",
    { body: heads === undefined || heads.length === 0 ? {} : { heads: [...heads] } },
    ["access", "verify", ...(heads ?? []).flatMap((_, at) => ["--head", `head${at + 1}.json`])],
  );
  const begin = async () => {
    setBusy(true);
    try {
      const report = (await verify.send(crypto.randomUUID())) as Schemas["AccessLogReport"];
      setOutcome({ kind: "report", report, atMs: Date.now() });
    } catch (error) {
      setOutcome({ kind: "failed", problem: asProblem(error) });
    }
    setBusy(false);
  };
  return (
    <Panel
      title="Verification"
      aside={
        <MayButton
          operation="access_log_verify"
          look="primary"
          onPress={() => {
            if (!isBusy && heads !== undefined) void begin();
          }}
        >
          {isBusy ? "Verifies\u2026" : "Verify"}
        </MayButton>
      }
    >
      <div className="stack">
        <p>
          Each entry has the hash of the one before it. The chain shows an entry that was changed,
          removed or added; that somebody rewrote it all, or cut its end, only a head shows that was
          kept elsewhere.
        </p>
        <TextField
          label="Heads that were kept elsewhere"
          hint="As they were saved, one a line."
          value={text}
          onChange={setText}
          fault={heads === undefined ? 'Lines such as {"id":41,"hash":"2217\u2026"}.' : undefined}
          isLong
          isCode
          isOptional
        />
        <div aria-live="polite">
          {outcome?.kind === "failed" ? <ProblemNote problem={outcome.problem} /> : null}
          {outcome?.kind === "report" ? (
            <Report report={outcome.report} atMs={outcome.atMs} />
          ) : null}
        </div>
        <WhatThisDoes actions={[verify]} />
      </div>
    </Panel>
  );
}

function Report({ report, atMs }: { report: Schemas["AccessLogReport"]; atMs: number }) {
  const { whole, entries, breaks = [], anchored, head, first_id, unchained } = report;
  return (
    <Note
      tone={whole ? "good" : "bad"}
      title={whole ? `The log is whole, as of ${moment(atMs)}` : "The log was tampered with"}
    >
      <p>
        {count(entries)} entries from number {count(first_id)} to {count(head.id)} were verified.
        {unchained > 0 ? ` ${count(unchained)} of them are older than the chain.` : ""}
      </p>
      {report.kept_heads_met + report.kept_heads_before > 0 ? (
        <p>
          {count(report.kept_heads_met)} kept heads agree; {count(report.kept_heads_before)} are of
          entries that were removed after their time.
        </p>
      ) : null}
      <p>
        {anchored === undefined || anchored === null
          ? "The key server has no head of it on its audit log yet."
          : `The key server\u2019s audit log has its head of entry ${count(anchored.id)}.`}
      </p>
      {breaks.map(({ id, reason }) => (
        <p key={id}>
          Entry {count(id)}: {reason}
        </p>
      ))}
    </Note>
  );
}

function Head() {
  const { data, error, isPending, refetch } = useAsk("access_log_head", {});
  const text = data === undefined ? "" : JSON.stringify(data);
  return (
    <Panel
      title="Head"
      aside={
        <Button icon="restart" onPress={() => void refetch()}>
          Read again
        </Button>
      }
    >
      <div className="stack">
        <p>
          Keep it where nobody who administers this site can change it: with it, a log that was
          rewritten later is found.
        </p>
        {error === null ? null : <ProblemNote problem={error} />}
        {isPending ? <Waiting lines={2} /> : null}
        {data === undefined ? null : (
          <>
            <CodeLine label="Head" text={text} />
            <div>
              <Button icon="down" onPress={() => saveAs(`access-log-head-${data.id}.json`, text)}>
                Save as a file
              </Button>
            </div>
          </>
        )}
        <CodeLine label="Command" text="strongroom access head --json" />
      </div>
    </Panel>
  );
}

function Retention() {
  const { data, error, isPending, refetch } = useAsk("access_log_retention", {});
  const [isChanging, change] = useState(false);
  return (
    <Panel
      title="Retention"
      aside={
        <MayButton operation="access_log_retention_set" onPress={() => change(true)}>
          Change&hellip;
        </MayButton>
      }
    >
      {error === null ? null : <ProblemNote problem={error} retry={() => void refetch()} />}
      {isPending ? <Waiting lines={4} /> : null}
      {data === undefined ? null : (
        <div className="stack">
          <Meter
            label="Room"
            used={data.bytes}
            total={data.room_bytes}
            show={bytes}
            fullFrom={ALMOST_FULL}
          />
          <Facts
            facts={[
              { label: "Entries", value: count(data.entries) },
              {
                label: "The oldest",
                value:
                  typeof data.oldest_unix_ms === "number" ? moment(data.oldest_unix_ms) : "none",
              },
              { label: "Kept for", value: duration(data.keep_s) },
            ]}
          />
          <p className="soft">
            When it is full, changes are refused; what stops VMs and takes access away goes on.
          </p>
        </div>
      )}
      {isChanging && data !== undefined ? (
        <RetentionDialog retention={data} onClose={() => change(false)} />
      ) : null}
    </Panel>
  );
}

function RetentionDialog({
  retention: { keep_s, room_bytes },
  onClose,
}: {
  retention: Schemas["AccessLogRetention"];
  onClose: () => void;
}) {
  const [days, setDays] = useState(String(Math.round(keep_s / DAY_S)));
  const [room, setRoom] = useState(sizeOf(room_bytes));
  const keepS = /^[0-9]+$/.test(days) ? Number(days) * DAY_S : undefined;
  const form = "SetAccessLogRetention";
  const fault = numberFault(limitsOf(form, "keep_s"), keepS, duration);
  const roomBytes = bytesOf(room);
  const isReady =
    fault === undefined && sizeFault(limitsOf(form, "room_bytes"), room) === undefined;
  const isShorter = keepS !== undefined && keepS < keep_s;
  return (
    <ActionDialog
      title="Retention of the access log"
      submit="Set"
      actions={isReady ? [setRetention({ keepS, roomBytes })] : []}
      onClose={onClose}
      {...(isShorter
        ? {
            confirm: "access log",
            loses: (
              <p>
                Entries that are older than {days} days, for good. Export them first:{" "}
                <code>strongroom access log --after 0 --most 1000 --json</code>, with a head.
              </p>
            ),
          }
        : {})}
    >
      <TextField
        label="Entries are kept for, in days"
        inputMode="numeric"
        value={days}
        onChange={setDays}
        fault={fault}
      />
      <SizeField
        label="The greatest size"
        size={room}
        limits={limitsOf(form, "room_bytes")}
        onChange={setRoom}
      />
    </ActionDialog>
  );
}
