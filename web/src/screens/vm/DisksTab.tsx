import { useState } from "react";
import { useAsk } from "../../api/ask";
import type { Disk, OperationId, Schemas, Vm } from "../../api/types";
import { bytes } from "../../lib/units";
import { Button } from "../../ui/Button";
import { Menu } from "../../ui/Menu";
import { Empty } from "../../ui/Notes";
import { Facts, Panel } from "../../ui/Panel";
import { Mark } from "../../ui/Status";
import {
  AddDiskDialog,
  DecryptDialog,
  EncryptDialog,
  RemoveDialog,
  ResizeDialog,
} from "./dialogs/DiskDialogs";
import { LimitDialog } from "./dialogs/LimitDialog";
import { Layers } from "./Layers";
import { limitInWords } from "./SummaryTab";
import { useVmRefusal } from "./useVmRefusal";

type Asked =
  { what: "add" } | { what: "resize" | "limit" | "encrypt" | "decrypt" | "remove"; disk: Disk };

export function DisksTab({ vm }: { vm: Vm }) {
  const [asked, ask] = useState<Asked>();
  const volumes = useAsk("volume_list", { query: { vm: vm.id, limit: 1000 } });
  const close = () => ask(undefined);
  const why = useVmRefusal(vm);
  return (
    <>
      <div className="buttons">
        <Button icon="plus" why={why("vm_add_disk")} onPress={() => ask({ what: "add" })}>
          Add a disk&hellip;
        </Button>
      </div>
      {vm.disks.length === 0 ? <Empty icon="disk" title="It has no disk" /> : null}
      <div className="halves">
        {vm.disks.map((disk) => (
          <DiskPanel
            key={disk.name}
            vm={vm}
            disk={disk}
            volume={volumes.data?.items.find(({ id }) => id === disk.volume)}
            why={why}
            onAsk={(what) => ask({ what, disk })}
          />
        ))}
      </div>
      {asked?.what === "add" ? <AddDiskDialog vm={vm} onClose={close} /> : null}
      {asked?.what === "resize" ? <ResizeDialog vm={vm} disk={asked.disk} onClose={close} /> : null}
      {asked?.what === "limit" ? <LimitDialog vm={vm} disk={asked.disk} onClose={close} /> : null}
      {asked?.what === "encrypt" ? (
        <EncryptDialog vm={vm} disk={asked.disk} onClose={close} />
      ) : null}
      {asked?.what === "decrypt" ? (
        <DecryptDialog vm={vm} disk={asked.disk} onClose={close} />
      ) : null}
      {asked?.what === "remove" ? <RemoveDialog vm={vm} disk={asked.disk} onClose={close} /> : null}
    </>
  );
}

interface Props {
  vm: Vm;
  disk: Disk;
  volume: Schemas["Volume"] | undefined;
  why: (operation: OperationId) => string | undefined;
  onAsk: (what: Exclude<Asked["what"], "add">) => void;
}

function DiskPanel({ vm, disk, volume, why, onAsk }: Props) {
  const isSealed = disk.key !== undefined && disk.key !== null;
  const choices = [
    {
      id: "resize",
      label: "Grow\u2026",
      refusal: why("vm_resize_disk"),
      choose: () => onAsk("resize"),
    },
    {
      id: "limit",
      label: "Limit\u2026",
      refusal: why("vm_limit_disk"),
      choose: () => onAsk("limit"),
    },
    isSealed
      ? {
          id: "decrypt",
          label: "Decrypt\u2026",
          isDangerous: true,
          refusal: why("vm_decrypt_disk"),
          choose: () => onAsk("decrypt"),
        }
      : {
          id: "encrypt",
          label: "Encrypt\u2026",
          refusal: why("vm_encrypt_disk"),
          choose: () => onAsk("encrypt"),
        },
    {
      id: "remove",
      label: "Remove\u2026",
      isDangerous: true,
      refusal: why("vm_remove_disk"),
      choose: () => onAsk("remove"),
    },
  ];
  return (
    <Panel
      title={disk.name}
      aside={<Menu label={`More for ${disk.name}`} icon="more" look="quiet" choices={choices} />}
    >
      <div className="stack">
        <Facts
          facts={[
            {
              label: "Size",
              value: `${bytes(disk.size_bytes)}${disk.kind === "swap" ? ", swap" : ""}`,
            },
            { label: "Protection", value: <DiskSeal disk={disk} /> },
            { label: "Key", value: isSealed ? <code>{disk.key?.key}</code> : "none" },
            {
              label: "Integrity",
              value: disk.integrity === true ? "each block has a keyed tag" : "no tags",
            },
            { label: "Limit", value: limitInWords(disk.limits) },
            { label: "Datastore", value: disk.datastore ?? vm.datastore },
            { label: "State", value: stateInWords(disk.state) },
          ]}
        />
        {volume?.space === undefined || volume.space === null ? (
          <p className="soft small">
            What it takes has not been read yet; hosts are asked in the background.
          </p>
        ) : (
          <Layers space={volume.space} snapshots={vm.snapshots ?? []} />
        )}
      </div>
    </Panel>
  );
}

function DiskSeal({ disk: { key, becomes } }: { disk: Disk }) {
  if (becomes !== undefined && becomes !== null) {
    return (
      <Mark tone="warning" shape="lock-half">
        {becomes === "encrypted" ? "Is being encrypted" : "Is being decrypted"}
      </Mark>
    );
  }
  return key === undefined || key === null ? (
    <Mark tone="off" shape="lock-open">
      Clear
    </Mark>
  ) : (
    <Mark tone="good" shape="lock">
      Sealed
    </Mark>
  );
}

function stateInWords(state: Schemas["VolumeState"]): string {
  switch (state) {
    case "idle":
      return "idle";
    case "exposed":
      return "in use by its guest";
    case "troubled":
      return "troubled";
    case "unknown":
      return "unknown";
  }
}
