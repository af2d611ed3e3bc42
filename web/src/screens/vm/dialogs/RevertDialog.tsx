import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { revert } from "../../../actions/vm";
import { limitsOf, textFault } from "../../../api/limits";
import type { Snapshot, Vm } from "../../../api/types";
import { moment } from "../../../lib/units";
import { CheckField, RadioField, TextField } from "../../../ui/Field";

export function RevertDialog({
  vm,
  snapshot,
  onClose,
}: {
  vm: Vm;
  snapshot: Snapshot;
  onClose: () => void;
}) {
  const [present, setPresent] = useState("keep");
  const [keepAs, setKeepAs] = useState("");
  const [disksOnly, setDisksOnly] = useState(false);
  const isKept = present === "keep";
  const fault =
    !isKept || keepAs === "" ? undefined : textFault(limitsOf("RevertVm", "keep_as"), keepAs);
  const hasMemory = snapshot.memory !== undefined && snapshot.memory !== null;
  const wish = {
    snapshot: snapshot.name,
    keepAs: keepAs === "" ? undefined : keepAs,
    isKept,
    disksOnly,
    tpm: hasMemory && vm.tpm && !disksOnly,
  };
  return (
    <ActionDialog
      title={`Revert ${vm.name} to ${snapshot.name}`}
      submit="Revert"
      actions={fault === undefined ? [revert(vm, wish)] : []}
      onClose={onClose}
      {...(isKept
        ? {}
        : {
            loses: "Everything that was written since the last snapshot of the present branch.",
            confirm: vm.name,
          })}
    >
      <p>
        Its disks become what they were on {moment(snapshot.at_unix_seconds * 1000)}. The VM has to
        be off.
      </p>
      <RadioField
        label="Present content"
        value={present}
        onChange={setPresent}
        options={[
          { value: "keep", label: "Is kept as a snapshot" },
          { value: "discard", label: "Is discarded" },
        ]}
      />
      {isKept ? (
        <TextField
          label="Name of that snapshot"
          hint="Without one: before-revert-N."
          value={keepAs}
          onChange={setKeepAs}
          fault={fault}
          isCode
          isOptional
        />
      ) : null}
      {hasMemory ? (
        <CheckField
          label="Leave the guest&rsquo;s memory"
          hint={
            vm.tpm
              ? "The guest boots. Otherwise it goes on where it was, and its TPM\u2019s counters go back, too."
              : "The guest boots. Otherwise it goes on where it was."
          }
          isChecked={disksOnly}
          onChange={setDisksOnly}
        />
      ) : null}
    </ActionDialog>
  );
}
