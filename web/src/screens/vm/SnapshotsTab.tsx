import { useState } from "react";
import type { Snapshot, Vm } from "../../api/types";
import { Button } from "../../ui/Button";
import { Empty } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { CloneDialog } from "./dialogs/CloneDialog";
import { DeleteSnapshotDialog } from "./dialogs/DeleteSnapshotDialog";
import { RevertDialog } from "./dialogs/RevertDialog";
import { SnapshotDialog } from "./dialogs/SnapshotDialog";
import { SchedulePanel } from "./SchedulePanel";
import { SnapshotTree, type SnapshotVerb } from "./SnapshotTree";
import { useVmRefusal } from "./useVmRefusal";

type Asked = { what: "create" } | { what: SnapshotVerb; snapshot: Snapshot };

export function SnapshotsTab({ vm }: { vm: Vm }) {
  const [asked, ask] = useState<Asked>();
  const close = () => ask(undefined);
  const why = useVmRefusal(vm);
  const snapshots = vm.snapshots ?? [];
  const make = (
    <Button icon="snapshot" why={why("vm_snapshot_create")} onPress={() => ask({ what: "create" })}>
      Snapshot&hellip;
    </Button>
  );
  return (
    <>
      <Panel title="Snapshots" isFlush>
        {snapshots.length === 0 ? (
          <Empty icon="snapshot" title="It has no snapshot" action={make}>
            A snapshot keeps the content of all its disks at one instant. It takes no time and no
            space; what is written afterwards does.
          </Empty>
        ) : (
          <SnapshotTree
            snapshots={snapshots}
            whyNot={{
              revert:
                vm.power === "stopped" || vm.power === "crashed"
                  ? why("vm_snapshot_revert")
                  : "The VM has to be off.",
              clone: why("vm_clone"),
              delete: why("vm_snapshot_delete"),
            }}
            onAsk={(what, snapshot) => ask({ what, snapshot })}
          />
        )}
      </Panel>
      <SchedulePanel vm={vm} />
      {asked?.what === "create" ? <SnapshotDialog vms={[vm]} onClose={close} /> : null}
      {asked?.what === "revert" ? (
        <RevertDialog vm={vm} snapshot={asked.snapshot} onClose={close} />
      ) : null}
      {asked?.what === "clone" ? (
        <CloneDialog vm={vm} snapshot={asked.snapshot.name} onClose={close} />
      ) : null}
      {asked?.what === "delete" ? (
        <DeleteSnapshotDialog vm={vm} snapshot={asked.snapshot} onClose={close} />
      ) : null}
    </>
  );
}
