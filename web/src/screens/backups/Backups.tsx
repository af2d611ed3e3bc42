import { useState } from "react";
import { ActionDialog } from "../../actions/ActionDialog";
import { backUpInventory } from "../../actions/site";
import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { bytes, count, moment } from "../../lib/units";
import { useTitle } from "../../shell/useTitle";
import { CodeLine } from "../../ui/CodeLine";
import { CheckField } from "../../ui/Field";
import { MayButton } from "../../ui/MayButton";
import { Empty, Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Facts, Panel, ScreenHead } from "../../ui/Panel";
import { AlarmLines } from "../alarms/AlarmLines";
import { EventLines } from "../events/EventLines";

export default function Backups() {
  useTitle("Backups of the inventory");
  const [isAsked, ask] = useState(false);
  const [made, setMade] = useState<Schemas["InventoryBackup"]>();
  return (
    <>
      <ScreenHead
        title="Backups of the inventory"
        actions={
          <MayButton operation="inventory_backup" look="primary" onPress={() => ask(true)}>
            Back up now&hellip;
          </MayButton>
        }
      />
      <Note>
        <p>
          The inventory is what the control plane knows: VMs, hosts, policies, users, roles and the
          access log. A backup has no key and no guest data, is sealed for its custodians, and goes
          where the configuration of the control plane&rsquo;s machine says.
        </p>
      </Note>
      <Unbacked />
      {made === undefined ? null : <Made backup={made} />}
      <Past />
      <Panel title="On the control plane&rsquo;s machine">
        <div className="stack">
          <p>
            Where backups go, how often they are made and who opens them is in{" "}
            <code>strongroom.conf</code>: <code>backup-directory</code>, <code>backup-every</code>,{" "}
            <code>backup-custodian</code>. Keys are not in them: the key server has backups of its
            own.
          </p>
          <CodeLine label="Check" text="strongroom inventory verify FILE --share ada.share" />
          <CodeLine label="Restore" text="strongroom inventory restore FILE --share ada.share" />
          <CodeLine label="Keys" text="strongroom keyserver backup" />
        </div>
      </Panel>
      {isAsked ? (
        <BackUpDialog
          onClose={() => ask(false)}
          onMade={(answer) => setMade(answer as Schemas["InventoryBackup"])}
        />
      ) : null}
    </>
  );
}

function Unbacked() {
  const { data } = useAsk("alarm_list", { query: { limit: 1000 } });
  const raised = (data?.items ?? []).filter(({ kind }) => kind === "inventory_unbacked");
  return raised.length === 0 ? null : (
    <Panel title="Alarm" isFlush>
      <AlarmLines alarms={raised} />
    </Panel>
  );
}

function Made({ backup }: { backup: Schemas["InventoryBackup"] }) {
  const { file, length_bytes, entries, custodians, threshold, created_unix_seconds } = backup;
  return (
    <Panel title="Just made">
      <Facts
        facts={[
          { label: "File", value: <code>{file}</code> },
          { label: "Made", value: moment(created_unix_seconds * 1_000) },
          { label: "Has", value: `${count(entries)} entries, ${bytes(length_bytes)}` },
          {
            label: "Opened by",
            value: `${count(threshold)} of ${custodians.join(", ")} together`,
          },
        ]}
      />
    </Panel>
  );
}

/** The backups that events still tell of. */
function Past() {
  const { data, error, isPending, refetch } = useAsk("event_list", { query: { limit: 1000 } });
  const made = (data?.items ?? []).filter(({ object }) => object.name === "inventory");
  return (
    <Panel title="Lately" isFlush>
      {error === null ? null : <ProblemNote problem={error} retry={() => void refetch()} />}
      {isPending ? <Waiting lines={3} /> : null}
      {data !== undefined && made.length === 0 ? (
        <Empty icon="datastore" title="No backup in the last events">
          Back the inventory up now, and set <code>backup-every</code> so that it happens by itself.
        </Empty>
      ) : null}
      <EventLines events={made} />
    </Panel>
  );
}

function BackUpDialog({
  onClose,
  onMade,
}: {
  onClose: () => void;
  onMade: (answer: unknown) => void;
}) {
  const [isWithout, setWithout] = useState(false);
  return (
    <ActionDialog
      title="Back the inventory up"
      submit="Back up"
      actions={[backUpInventory(isWithout)]}
      onClose={onClose}
      onDone={([outcome]) => onMade(outcome?.answer)}
    >
      <p>It is made while everything runs, and is of one instant.</p>
      <CheckField
        label="Without the access log"
        hint="After a restore the log begins anew."
        isChecked={isWithout}
        onChange={setWithout}
      />
    </ActionDialog>
  );
}
