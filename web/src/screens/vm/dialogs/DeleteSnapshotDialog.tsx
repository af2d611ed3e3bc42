import { ActionDialog } from "../../../actions/ActionDialog";
import { deleteSnapshot } from "../../../actions/vm";
import type { Snapshot, Vm } from "../../../api/types";
import { moment } from "../../../lib/units";

export function DeleteSnapshotDialog({
  vm,
  snapshot,
  onClose,
}: {
  vm: Vm;
  snapshot: Snapshot;
  onClose: () => void;
}) {
  return (
    <ActionDialog
      title={`Delete snapshot ${snapshot.name}`}
      submit="Delete"
      actions={[deleteSnapshot(vm, snapshot.name)]}
      onClose={onClose}
      confirm={snapshot.name}
      loses={`The way back to ${vm.name} as it was on ${moment(snapshot.at_unix_seconds * 1000)}. Other snapshots and the present content stay.`}
    />
  );
}
