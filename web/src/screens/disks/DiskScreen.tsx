import { useState } from "react";
import { Link, useLocation, useParams } from "wouter";
import { useAsk } from "../../api/ask";
import type { Schemas, Snapshot } from "../../api/types";
import { addresses } from "../../app/addresses";
import { bytes } from "../../lib/units";
import { Nowhere } from "../../shell/Nowhere";
import { useTitle } from "../../shell/useTitle";
import { Menu } from "../../ui/Menu";
import { Empty, Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Facts, Panel, ScreenHead } from "../../ui/Panel";
import { SealMark } from "../../ui/Status";
import { Layers } from "../vm/Layers";
import { RunningTask } from "../vm/RunningTask";
import { SnapshotTree, type SnapshotVerb } from "../vm/SnapshotTree";
import {
  BindDialog,
  CloneDiskDialog,
  DeleteDiskDialog,
  DeleteDiskSnapshotDialog,
  GrowDialog,
  RevertDiskDialog,
  SnapshotDiskDialog,
} from "./dialogs";
import { nameOf } from "./filter";
import { useDiskRefusal } from "./useDiskRefusal";

type View = Schemas["VolumeView"];
type Asked =
  | { what: "bind" | "resize" | "clone" | "snapshot" | "delete" }
  | { what: `snapshot-${SnapshotVerb}`; snapshot: Snapshot };

export default function DiskScreen() {
  const { disk: id = "" } = useParams<{ disk: string }>();
  const asked = useAsk("volume_show", { path: { volume: id } });
  const disk = asked.data;
  useTitle(disk === undefined ? "Disk" : nameOf(disk));
  if (asked.error?.code === "not_found") return <Nowhere />;
  if (disk === undefined) {
    return asked.error === null ? (
      <Waiting lines={6} />
    ) : (
      <ProblemNote problem={asked.error} retry={() => void asked.refetch()} />
    );
  }
  return <OneDisk disk={disk} />;
}

function OneDisk({ disk }: { disk: View }) {
  const [asked, ask] = useState<Asked>();
  const isFree = typeof disk.vm !== "string";
  const { task } = disk;
  return (
    <>
      <ScreenHead
        title={nameOf(disk)}
        above={<Link href={addresses.disks}>Disks</Link>}
        beside={<SealMark seal={disk.encrypted ? "sealed" : "clear"} />}
        actions={<DiskActions disk={disk} onAsk={(what) => ask({ what })} />}
      />
      {typeof task === "string" ? <RunningTask task={task} /> : null}
      {isFree ? null : (
        <Note>
          <p>
            It is a disk of{" "}
            <Link href={addresses.vm(disk.vm_name ?? "", "disks")}>{disk.vm_name}</Link>, and is
            changed there, with the VM.
          </p>
        </Note>
      )}
      <div className="halves">
        <About disk={disk} />
        <Panel title="What it takes">
          {disk.space === undefined || disk.space === null ? (
            <p className="soft">It has not been read yet; hosts are asked in the background.</p>
          ) : (
            <Layers space={disk.space} snapshots={disk.snapshots} />
          )}
        </Panel>
      </div>
      <Snapshots
        disk={disk}
        isFree={isFree}
        onAsk={(verb, snapshot) => ask({ what: `snapshot-${verb}`, snapshot })}
      />
      {asked === undefined ? null : (
        <Dialogs disk={disk} asked={asked} onClose={() => ask(undefined)} />
      )}
    </>
  );
}

function DiskActions({
  disk,
  onAsk,
}: {
  disk: View;
  onAsk: (what: Exclude<Asked["what"], `snapshot-${SnapshotVerb}`>) => void;
}) {
  const why = useDiskRefusal(disk, disk.task);
  const ofVm =
    typeof disk.vm_name === "string"
      ? `It is a disk of ${disk.vm_name}: change it there.`
      : undefined;
  const hasSnapshots = disk.snapshots.length > 0 ? "It has snapshots." : undefined;
  return (
    <Menu
      label={`Actions for ${nameOf(disk)}`}
      choices={[
        {
          id: "bind",
          label: "Give it to a VM\u2026",
          refusal: ofVm ?? why("volume_bind") ?? hasSnapshots,
          choose: () => onAsk("bind"),
        },
        {
          id: "snapshot",
          label: "Snapshot\u2026",
          refusal: ofVm ?? why("volume_snapshot"),
          choose: () => onAsk("snapshot"),
        },
        {
          id: "clone",
          label: "Clone\u2026",
          refusal: why("volume_clone"),
          choose: () => onAsk("clone"),
        },
        {
          id: "resize",
          label: "Grow\u2026",
          refusal: ofVm ?? why("volume_resize"),
          choose: () => onAsk("resize"),
        },
        {
          id: "delete",
          label: "Delete\u2026",
          isDangerous: true,
          refusal: ofVm ?? why("volume_delete"),
          choose: () => onAsk("delete"),
        },
      ]}
    >
      Actions
    </Menu>
  );
}

function About({ disk }: { disk: View }) {
  return (
    <Panel title="About it">
      <Facts
        facts={[
          { label: "Size", value: bytes(disk.size_bytes) },
          {
            label: "VM",
            value:
              typeof disk.vm_name === "string" ? (
                <Link href={addresses.vm(disk.vm_name, "disks")}>{disk.vm_name}</Link>
              ) : (
                "none"
              ),
          },
          typeof disk.vm_name === "string" && disk.encrypted
            ? {
                label: "Key",
                value: (
                  <Link href={addresses.vm(disk.vm_name, "keys")}>Keys of {disk.vm_name}</Link>
                ),
              }
            : undefined,
          {
            label: "Datastore",
            value: <Link href={addresses.datastore(disk.datastore)}>{disk.datastore}</Link>,
          },
          {
            label: "Space",
            value: disk.thick ? "was allocated at once" : "is allocated when it is written",
          },
          disk.linked_clones.length === 0
            ? undefined
            : { label: "Linked clones", value: disk.linked_clones.join(", ") },
          { label: "Id", value: <code>{disk.id}</code> },
        ]}
      />
    </Panel>
  );
}

function Snapshots({
  disk,
  isFree,
  onAsk,
}: {
  disk: View;
  isFree: boolean;
  onAsk: (verb: SnapshotVerb, snapshot: Snapshot) => void;
}) {
  const why = useDiskRefusal(disk, disk.task);
  const ofVm = isFree ? undefined : "It is a snapshot of the VM.";
  return (
    <Panel title="Snapshots" isFlush>
      {disk.snapshots.length === 0 ? (
        <Empty icon="snapshot" title="It has no snapshot">
          A snapshot keeps its content at one instant. It takes no time and no space; what is
          written afterwards does.
        </Empty>
      ) : (
        <SnapshotTree
          snapshots={disk.snapshots}
          whyNot={{
            revert: ofVm ?? why("volume_revert"),
            clone: why("volume_clone"),
            delete: ofVm ?? why("volume_snapshot"),
          }}
          onAsk={onAsk}
        />
      )}
    </Panel>
  );
}

function Dialogs({ disk, asked, onClose }: { disk: View; asked: Asked; onClose: () => void }) {
  const [, go] = useLocation();
  const of = { disk, onClose };
  switch (asked.what) {
    case "bind":
      return <BindDialog {...of} />;
    case "resize":
      return <GrowDialog {...of} />;
    case "clone":
      return <CloneDiskDialog {...of} snapshots={disk.snapshots} />;
    case "snapshot":
      return <SnapshotDiskDialog {...of} />;
    case "delete":
      return <DeleteDiskDialog {...of} onDone={() => go(addresses.disks)} />;
    case "snapshot-revert":
      return <RevertDiskDialog {...of} snapshot={asked.snapshot} />;
    case "snapshot-clone":
      return <CloneDiskDialog {...of} snapshot={asked.snapshot.name} snapshots={disk.snapshots} />;
    case "snapshot-delete":
      return <DeleteDiskSnapshotDialog {...of} snapshot={asked.snapshot} />;
  }
}
