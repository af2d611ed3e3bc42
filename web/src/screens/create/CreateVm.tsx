import { useRef, useState, type SyntheticEvent } from "react";
import { Link, useLocation } from "wouter";
import { taskOf } from "../../actions/action";
import { createVm, sendContents } from "./creation";
import { report, sendAll } from "../../actions/run";
import { WhatThisDoes } from "../../actions/WhatThisDoes";
import { useAsk } from "../../api/ask";
import type { Problem } from "../../api/problem";
import { addresses } from "../../app/addresses";
import { bytes, plural } from "../../lib/units";
import { useRefusal } from "../../session/useMe";
import { useTitle } from "../../shell/useTitle";
import { Button } from "../../ui/Button";
import { Note, ProblemNote } from "../../ui/Notes";
import { Facts, Panel, ScreenHead } from "../../ui/Panel";
import { SealMark } from "../../ui/Status";
import { bytesOf } from "../../ui/SizeField";
import { diskSizes, EMPTY, faultsOf, underPolicy, type Draft, type Faults } from "./draft";
import { DisksPart } from "./DisksPart";
import { HardwarePart } from "./HardwarePart";
import { NamePart } from "./NamePart";
import { ProtectionPart } from "./ProtectionPart";
import { SeedPart } from "./SeedPart";

export interface PartProps {
  draft: Draft;
  faults: Faults;
  change: (changes: Partial<Draft>) => void;
}

export default function CreateVm() {
  useTitle("Create a VM");
  const [written, write] = useState<Draft>(EMPTY);
  const policies = useAsk("policy_list", { query: { limit: 1000 } });
  const policy = policies.data?.items.find(({ name }) => name === written.policy);
  const draft = underPolicy(written, policy?.rules);
  const [hasTried, setTried] = useState(false);
  const all = faultsOf(draft);
  // An empty name is no fault before somebody had the time to write one.
  const faults = hasTried || draft.name !== "" ? all : { ...all, name: undefined };
  const shown = Object.fromEntries(
    Object.entries(faults).filter(([, fault]) => fault !== undefined),
  );
  const part: PartProps = {
    draft,
    faults: shown,
    change: (changes) => write((former) => ({ ...former, ...changes })),
  };
  return (
    <>
      <ScreenHead title="Create a VM" above={<Link href={addresses.vms}>VMs</Link>} />
      <div className="create">
        <div className="stack">
          <NamePart {...part} policies={policies.data?.items ?? []} />
          <HardwarePart {...part} />
          <DisksPart {...part} />
          <SeedPart {...part} />
          <ProtectionPart {...part} rules={policy?.rules} />
        </div>
        <Outcome draft={draft} faults={all} onTried={() => setTried(true)} />
      </div>
    </>
  );
}

/** What the draft amounts to, and the way to have it. */
function Outcome({
  draft,
  faults,
  onTried,
}: {
  draft: Draft;
  faults: Faults;
  onTried: () => void;
}) {
  const [, go] = useLocation();
  const refusal = useRefusal();
  const [problem, setProblem] = useState<Problem>();
  const [isBusy, setBusy] = useState(false);
  const keys = useRef(new Map<string, string>());
  const wrong = Object.entries(faults);
  const disks = diskSizes(draft);
  const action = wrong.length === 0 ? createVm(draft) : undefined;
  const refused = refusal("vm_create");

  const submitted = async (event: SyntheticEvent) => {
    event.preventDefault();
    onTried();
    if (action === undefined || isBusy) return;
    setBusy(true);
    const name = JSON.stringify(action.request);
    const key = keys.current.get(name) ?? crypto.randomUUID();
    keys.current.set(name, key);
    const [outcome] = await sendAll([action], () => key);
    setBusy(false);
    setProblem(outcome?.problem);
    if (outcome === undefined || outcome.problem !== undefined) return;
    report(outcome);
    const task = taskOf(outcome.answer);
    if (task !== undefined) sendContents(draft, task);
    go(addresses.vm(draft.name));
  };
  return (
    <form className="create-outcome" onSubmit={(event) => void submitted(event)}>
      <Panel title="Summary">
        <div className="stack">
          <Facts
            facts={[
              { label: "Name", value: draft.name === "" ? "to be chosen" : draft.name },
              { label: "Processors", value: draft.cpus },
              { label: "Memory", value: bytes(bytesOf(draft.memory) ?? 0) },
              {
                label: "Disks",
                value: `${plural(disks.length, "disk")}, ${bytes(disks.reduce((sum, { size }) => sum + size, 0))}`,
              },
              {
                label: "Protection",
                value: <SealMark seal={draft.isSealed ? "sealed" : "clear"} />,
              },
            ]}
          />
          {refused === undefined ? null : <Note tone="warning">{refused}</Note>}
          {problem === undefined ? null : <ProblemNote problem={problem} />}
          <WhatThisDoes actions={action === undefined ? [] : [action]} />
          <Button type="submit" look="primary" isBusy={isBusy} why={refused}>
            Create
          </Button>
          {wrong.length === 0 ? null : (
            <p className="field-hint">
              {plural(wrong.length, "field")} to be mended:{" "}
              {wrong.map(([field]) => field).join(", ")}
            </p>
          )}
        </div>
      </Panel>
    </form>
  );
}
