import { useState } from "react";
import { ActionDialog } from "../../actions/ActionDialog";
import { createPolicy, setPolicy, withoutOption } from "../../actions/policy";
import { useAsk } from "../../api/ask";
import { limitsOf, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { Button, IconButton } from "../../ui/Button";
import { CheckField, RadioField, SelectField, TextField } from "../../ui/Field";
import { Note } from "../../ui/Notes";
import { SizeField } from "../../ui/SizeField";
import {
  draftOf,
  faultsOf,
  newSnapshots,
  noRules,
  rulesOf,
  TIME_UNITS,
  type Draft,
  type Faults,
  type SnapshotDraft,
} from "./draft";

const SNAPSHOT_RULES_MAX = 8;

interface Props {
  /** The policy that gets other rules; without it, a new one is made. */
  policy?: Schemas["Policy"];
  onClose: () => void;
}

export function PolicyDialog({ policy, onClose }: Props) {
  const [name, setName] = useState("");
  const [description, setDescription] = useState("");
  const [draft, setDraft] = useState(policy === undefined ? noRules : draftOf(policy.rules));
  const change = (next: Partial<Draft>) => setDraft({ ...draft, ...next });
  const faults = faultsOf(draft);
  const nameFault = textFault(limitsOf("CreatePolicy", "name"), name);
  const purposeFault = textFault(limitsOf("CreatePolicy", "description"), description);
  const rules = rulesOf(draft);
  const unsaid = withoutOption(rules);
  const actions = () => {
    if (!faults.isWhole) return [];
    if (policy !== undefined) return [setPolicy(policy.name, rules)];
    return nameFault === undefined && purposeFault === undefined
      ? [createPolicy(name, description, rules)]
      : [];
  };
  return (
    <ActionDialog
      title={policy === undefined ? "Create a policy" : `Rules of ${policy.name}`}
      submit={policy === undefined ? "Create" : "Change the rules"}
      size="wide"
      actions={actions()}
      onClose={onClose}
    >
      {policy === undefined ? (
        <>
          <TextField
            label="Name"
            value={name}
            onChange={setName}
            fault={name === "" ? undefined : nameFault}
          />
          <TextField
            label="Purpose"
            hint="For people."
            value={description}
            onChange={setDescription}
            fault={purposeFault}
            isOptional
          />
        </>
      ) : (
        <p>
          VMs under it stay as they are: {policy.vms}. Those that do not keep the new rules deviate,
          have an alarm, and may only come nearer to them.
        </p>
      )}
      <Protection draft={draft} change={change} />
      <Placement draft={draft} change={change} faults={faults} />
      <DiskRules draft={draft} change={change} faults={faults} />
      <Snapshots draft={draft} change={change} faults={faults} />
      {unsaid.length === 0 ? null : (
        <Note>
          The command line has no option for {unsaid.join(" and ")}: the API call does all of it.
        </Note>
      )}
    </ActionDialog>
  );
}

interface Part {
  draft: Draft;
  change: (next: Partial<Draft>) => void;
}

function Protection({ draft, change }: Part) {
  const providers = useAsk("key_provider_list", { query: { limit: 1000 } });
  return (
    <>
      <h3>Protection</h3>
      <CheckField
        label="Every disk is encrypted"
        isChecked={draft.isEncrypted}
        onChange={(isEncrypted) => change({ isEncrypted })}
      />
      <CheckField
        label="Encrypted disks have integrity tags"
        hint="A block that was changed or replaced by an old one cannot be read."
        isChecked={draft.hasTags}
        onChange={(hasTags) => change({ hasTags })}
      />
      <CheckField
        label="Every VM has a TPM"
        isChecked={draft.hasTpm}
        onChange={(hasTpm) => change({ hasTpm })}
      />
      <CheckField
        label="Only on hosts where no secret in memory can reach a disk"
        isChecked={draft.needsSafeHosts}
        onChange={(needsSafeHosts) => change({ needsSafeHosts })}
      />
      <CheckField
        label="No consoles, screens and images in browsers"
        hint="They pass a process of the control plane's machine in plain text; commands reach them at the host."
        isChecked={draft.deniesBrowsers}
        onChange={(deniesBrowsers) => change({ deniesBrowsers })}
      />
      <SelectField
        label="Key provider"
        value={draft.provider}
        onChange={(provider) => change({ provider })}
        options={[
          { value: "", label: "Any" },
          ...(providers.data?.items ?? []).map(({ name }) => ({ value: name, label: name })),
        ]}
      />
    </>
  );
}

function Placement({ draft, change, faults }: Part & { faults: Faults }) {
  return (
    <>
      <h3>How VMs run</h3>
      <RadioField
        label="Memory on its way to another host"
        value={draft.migration}
        onChange={(migration) => change({ migration })}
        options={[
          { value: "", label: "Encrypted" },
          { value: "opportunistic", label: "Encrypted where both hosts can" },
          { value: "disabled", label: "In plain text" },
        ]}
      />
      <div className="field-row">
        <SelectField
          label="After a crash"
          value={draft.restart}
          onChange={(restart) => change({ restart })}
          options={[
            { value: "", label: "Each VM decides" },
            { value: "on_failure", label: "Started again" },
            { value: "never", label: "Stays off" },
          ]}
        />
        <TextField
          label="Processor"
          hint="host, a level such as x86-64-v3, or a model of QEMU."
          value={draft.processor}
          onChange={(processor) => change({ processor })}
          fault={faults.processor}
          isOptional
          isCode
        />
      </div>
    </>
  );
}

function DiskRules({ draft, change, faults }: Part & { faults: Faults }) {
  return (
    <>
      <h3>Disks</h3>
      <CheckField
        label="Disks take their whole space when they are made"
        isChecked={draft.isThick}
        onChange={(isThick) => change({ isThick })}
      />
      <div className="field-row">
        <TextField
          label="Losses survived"
          hint="Storage devices at one time; takes a Ceph cluster."
          inputMode="numeric"
          value={draft.losses}
          onChange={(losses) => change({ losses })}
          fault={faults.losses}
          isOptional
        />
        <TextField
          label="Alarm above a latency of, in ms"
          hint="Of 1 in 100 requests. 500 ms if empty; 0 raises none."
          inputMode="numeric"
          value={draft.latency}
          onChange={(latency) => change({ latency })}
          fault={faults.latency}
          isOptional
        />
      </div>
      <div className="field-row">
        <TextField
          label="Most operations a second"
          inputMode="numeric"
          value={draft.iops}
          onChange={(iops) => change({ iops })}
          fault={faults.iops}
          isOptional
        />
        <TextField
          label="Operations at once after a pause"
          inputMode="numeric"
          value={draft.iopsBurst}
          onChange={(iopsBurst) => change({ iopsBurst })}
          fault={faults.iopsBurst}
          isOptional
        />
      </div>
      <div className="field-row">
        <SizeField
          label="Most bytes a second"
          size={draft.bandwidth}
          limits={limitsOf("BandwidthLimit", "bytes_per_second")}
          onChange={(bandwidth) => change({ bandwidth })}
          isOptional
        />
        <SizeField
          label="Bytes at once after a pause"
          size={draft.bandwidthBurst}
          limits={limitsOf("BandwidthLimit", "burst_bytes")}
          onChange={(bandwidthBurst) => change({ bandwidthBurst })}
          isOptional
        />
      </div>
    </>
  );
}

function Snapshots({ draft, change, faults }: Part & { faults: Faults }) {
  const set = (index: number, next: Partial<SnapshotDraft>) =>
    change({
      snapshots: draft.snapshots.map((rule, at) => (at === index ? { ...rule, ...next } : rule)),
    });
  return (
    <>
      <h3>Snapshots that are made at least</h3>
      {draft.snapshots.map((rule, index) => (
        <div key={index} className="snapshot-rule">
          <TextField
            label="One every"
            inputMode="numeric"
            value={rule.every}
            onChange={(every) => set(index, { every })}
          />
          <SelectField
            label="Unit"
            value={rule.unit}
            options={TIME_UNITS}
            onChange={(unit) => set(index, { unit })}
          />
          <TextField
            label="Kept"
            inputMode="numeric"
            value={rule.keep}
            onChange={(keep) => set(index, { keep })}
          />
          <IconButton
            icon="close"
            label={`Leave out rule ${index + 1}`}
            onPress={() => change({ snapshots: draft.snapshots.filter((_, at) => at !== index) })}
          />
          {faults.snapshots[index] === undefined ? null : (
            <p className="field-fault snapshot-fault" role="status">
              {faults.snapshots[index]}
            </p>
          )}
        </div>
      ))}
      <div>
        <Button
          icon="plus"
          isDisabled={draft.snapshots.length >= SNAPSHOT_RULES_MAX}
          onPress={() => change({ snapshots: [...draft.snapshots, newSnapshots] })}
        >
          Add snapshots
        </Button>
      </div>
    </>
  );
}
