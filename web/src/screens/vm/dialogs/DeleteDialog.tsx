import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { deleteVm } from "../../../actions/vm";
import type { VmSummary } from "../../../api/types";
import { bytes, plural } from "../../../lib/units";
import { CheckField } from "../../../ui/Field";
import { named } from "./naming";

type Of = Pick<VmSummary, "name" | "disk_bytes" | "encrypted"> & {
  linked_clones?: string[];
  snapshots?: unknown[];
};

export function DeleteDialog({
  vms,
  onClose,
  onDone,
}: {
  vms: readonly Of[];
  onClose: () => void;
  onDone?: () => void;
}) {
  const [withVolumes, setWithVolumes] = useState(false);
  const [leaveToClones, setLeaveToClones] = useState(false);
  const size = vms.reduce((sum, { disk_bytes }) => sum + disk_bytes, 0);
  const clones = vms.flatMap(({ linked_clones = [] }) => linked_clones);
  const snapshots = vms.reduce((sum, vm) => sum + (vm.snapshots?.length ?? 0), 0);
  const isOne = vms.length === 1;
  return (
    <ActionDialog
      title={`Delete ${named(vms)}`}
      submit="Delete"
      actions={vms.map((vm) => deleteVm(vm, { withVolumes, leaveToClones }))}
      onClose={onClose}
      {...(onDone === undefined ? {} : { onDone })}
      confirm={isOne ? (vms[0]?.name ?? "") : `delete ${vms.length}`}
      loses={
        <>
          <p>
            {isOne ? "Its" : "Their"} disks of {bytes(size)}
            {snapshots > 0 ? `, with ${plural(snapshots, "snapshot")}` : ""}, for good.
            {vms.some(({ encrypted }) => encrypted)
              ? " Without the keys, what remains on the datastore cannot be read."
              : ""}
          </p>
          {clones.length > 0 ? <p>Linked clones share its content: {clones.join(", ")}.</p> : null}
        </>
      }
    >
      {clones.length > 0 ? (
        <CheckField
          label="Leave to the clones what they share"
          hint="It stays on the datastore under their keys."
          isChecked={leaveToClones}
          onChange={setLeaveToClones}
        />
      ) : null}
      <CheckField
        label="Delete disks that were given to it, too"
        hint="Otherwise volumes that were bound to it are kept."
        isChecked={withVolumes}
        onChange={setWithVolumes}
      />
    </ActionDialog>
  );
}
