import { useState } from "react";
import { commandLine } from "../../actions/action";
import { useAsk } from "../../api/ask";
import type { Disk, Right, Schemas, Vm } from "../../api/types";
import { bytes } from "../../lib/units";
import { Button } from "../../ui/Button";
import { CodeLine } from "../../ui/CodeLine";
import { Menu } from "../../ui/Menu";
import { Empty } from "../../ui/Notes";
import { Facts, Panel } from "../../ui/Panel";
import { Mark } from "../../ui/Status";
import {
  AddDiskDialog,
  DecryptDialog,
  EncryptDialog,
  KeepDialog,
  MoveDialog,
  RemoveDialog,
  ResizeDialog,
} from "./dialogs/DiskDialogs";
import { LimitDialog } from "./dialogs/LimitDialog";
import { ImageDialog } from "../../upload/ImageDialog";
import { SeedDialog } from "../../upload/SeedDialog";
import { Layers } from "./Layers";
import { limitInWords } from "./SummaryTab";
import { useVmRefusal } from "./useVmRefusal";

type Verb = "fill" | "resize" | "limit" | "move" | "encrypt" | "decrypt" | "keep" | "remove";
type Asked = { what: "add" } | { what: "seed" } | { what: Verb; disk: Disk };

export function DisksTab({ vm }: { vm: Vm }) {
  const [asked, ask] = useState<Asked>();
  const volumes = useAsk("volume_list", { query: { vm: vm.id, limit: 1000 } });
  const close = () => ask(undefined);
  const why = useVmRefusal(vm);
  const isOff = vm.power === "stopped" || vm.power === "crashed" || vm.power === "key_unavailable";
  const whyNotFilled =
    why("vm_import_disk") ??
    (vm.browser_console_denied === true
      ? "Its policy refuses images from browsers: strongroom vm disk import sends one to its host."
      : undefined) ??
    (isOff ? undefined : "A disk is filled while the VM is off.");
  return (
    <>
      <div className="buttons">
        <Button icon="plus" why={why("vm_add_disk")} onPress={() => ask({ what: "add" })}>
          Add a disk&hellip;
        </Button>
        {vm.seed === true ? (
          <Button why={whyNotFilled} onPress={() => ask({ what: "seed" })}>
            Replace cloud-init&rsquo;s seed&hellip;
          </Button>
        ) : null}
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
            whyNotFilled={whyNotFilled}
            onAsk={(what) => ask({ what, disk })}
          />
        ))}
      </div>
      <OnlyCommands vm={vm} />
      {asked?.what === "seed" ? <SeedDialog vm={vm} onClose={close} /> : null}
      {asked?.what === "fill" ? (
        <ImageDialog
          vm={vm.name}
          disk={asked.disk.name}
          size={asked.disk.size_bytes}
          onClose={close}
        />
      ) : null}
      {asked?.what === "add" ? <AddDiskDialog vm={vm} onClose={close} /> : null}
      {asked?.what === "resize" ? <ResizeDialog vm={vm} disk={asked.disk} onClose={close} /> : null}
      {asked?.what === "limit" ? <LimitDialog vm={vm} disk={asked.disk} onClose={close} /> : null}
      {asked?.what === "move" ? <MoveDialog vm={vm} disk={asked.disk} onClose={close} /> : null}
      {asked?.what === "keep" ? <KeepDialog vm={vm} disk={asked.disk} onClose={close} /> : null}
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

/** What reads or writes images, which are files of the command line's machine. */
function OnlyCommands({ vm: { name } }: { vm: Vm }) {
  const lines = [
    { label: "Check its disks", words: ["vm", "check", name] },
    {
      label: "Export a disk",
      words: ["vm", "export", name, `${name}.qcow2`, "--format", "qcow2"],
    },
    { label: "Export the VM", words: ["vm", "export-ova", name, `${name}.ova`] },
  ];
  return (
    <details className="what">
      <summary>Checks and exports, by command</summary>
      <p className="field-hint">
        They read the disks of a VM that is off from its host, to a file in plain text where the
        command runs.
      </p>
      {lines.map(({ label, words }) => (
        <CodeLine key={label} label={label} text={commandLine({ command: words })} />
      ))}
    </details>
  );
}

interface Props {
  vm: Vm;
  disk: Disk;
  volume: Schemas["Volume"] | undefined;
  why: (operation: Right) => string | undefined;
  whyNotFilled: string | undefined;
  onAsk: (what: Verb) => void;
}

function DiskPanel({ vm, disk, volume, why, whyNotFilled, onAsk }: Props) {
  const isSealed = disk.key !== undefined && disk.key !== null;
  const choices = [
    ...(disk.kind === "swap"
      ? []
      : [
          {
            id: "fill",
            label: "Fill with an image\u2026",
            isDangerous: true,
            refusal: whyNotFilled,
            choose: () => onAsk("fill"),
          },
        ]),
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
    {
      id: "move",
      label: "Move to another datastore\u2026",
      refusal: why("vm_move_disk"),
      choose: () => onAsk("move"),
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
      id: "keep",
      label: "Take from the VM, and keep\u2026",
      refusal: why("volume_unbind"),
      choose: () => onAsk("keep"),
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
