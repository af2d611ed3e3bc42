import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { createSnapshot } from "../../../actions/vm";
import { limitsOf, numberFault, textFault } from "../../../api/limits";
import type { VmSummary } from "../../../api/types";
import { CheckField, TextField } from "../../../ui/Field";
import { named } from "./naming";

/** As many others take part at one instant (`with` of the API). */
const WITH_MAX = limitsOf("CreateSnapshot", "with").maxItems ?? 0;

type Of = Pick<VmSummary, "name" | "power"> & { guest_agent?: boolean };

export function SnapshotDialog({ vms, onClose }: { vms: readonly Of[]; onClose: () => void }) {
  const [name, setName] = useState(() => nameOfNow(new Date()));
  const [memory, setMemory] = useState(false);
  const [quiesce, setQuiesce] = useState(false);
  const [within, setWithin] = useState("30");
  const [isTogether, setTogether] = useState(false);
  const nameFault = textFault(limitsOf("CreateSnapshot", "name"), name);
  const withinFault = quiesce
    ? numberFault(limitsOf("CreateSnapshot", "quiesce_within_s"), Number(within))
    : undefined;
  const isValid = nameFault === undefined && withinFault === undefined;
  const anyRuns = vms.some(({ power }) => power === "running" || power === "paused");
  const [first, ...others] = vms;
  const wish = { name, memory, quiesceS: quiesce ? Number(within) : undefined };
  return (
    <ActionDialog
      title={`Snapshot of ${named(vms)}`}
      submit="Make the snapshot"
      actions={
        !isValid || first === undefined
          ? []
          : isTogether
            ? [createSnapshot(first, { ...wish, with: others })]
            : vms.map((vm) => createSnapshot(vm, wish))
      }
      onClose={onClose}
    >
      <TextField
        label="Name"
        value={name}
        onChange={setName}
        fault={name === "" ? undefined : nameFault}
        isCode
      />
      {others.length > 0 && others.length <= WITH_MAX ? (
        <CheckField
          label="Of one instant"
          hint="All of them, on one host, get it at the same moment, or none does. Otherwise each gets its own."
          isChecked={isTogether}
          onChange={setTogether}
        />
      ) : null}
      {anyRuns ? (
        <>
          <CheckField
            label="With the guest's memory"
            hint="Reverting to it goes on where the guest was. It is sealed like the disks."
            isChecked={memory}
            onChange={setMemory}
          />
          <CheckField
            label="Freeze the guest's file systems"
            hint="Its agent does, or there is no snapshot. Without it, the content is that after a power cut."
            isChecked={quiesce}
            onChange={setQuiesce}
          />
          {quiesce ? (
            <TextField
              label="Within seconds"
              inputMode="numeric"
              value={within}
              onChange={setWithin}
              fault={withinFault}
            />
          ) : null}
        </>
      ) : null}
    </ActionDialog>
  );
}

/** A name for a snapshot that is made now, in UTC: 2026-11-30-1405-09. */
function nameOfNow(now: Date): string {
  const [day = "", time = ""] = now.toISOString().slice(0, 19).split("T");
  return `${day}-${time.slice(0, 5).replace(":", "")}-${time.slice(6)}`;
}
