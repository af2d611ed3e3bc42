import { useState } from "react";
import { ActionDialog } from "../../actions/ActionDialog";
import {
  bindVolume,
  cloneVolume,
  createVolume,
  deleteVolume,
  deleteVolumeSnapshot,
  resizeVolume,
  revertVolume,
  snapshotVolume,
} from "../../actions/volume";
import { useAsk } from "../../api/ask";
import { limitsOf, textFault } from "../../api/limits";
import type { Schemas, Snapshot } from "../../api/types";
import { useEstate } from "../../live/useLive";
import { bytes, moment } from "../../lib/units";
import { CheckField, RadioField, SelectField, TextField } from "../../ui/Field";
import { bytesOf, noSize, sizeFault, SizeField, sizeOf } from "../../ui/SizeField";
import { nameOf } from "./filter";

type Volume = Schemas["Volume"];
type View = Schemas["VolumeView"];

interface Of<Disk = Volume> {
  disk: Disk;
  onClose: () => void;
}

const MS = 1_000;
const SIZES = limitsOf("AddDisk", "size_bytes");
const nameFault = (name: string) => textFault(limitsOf("CreateVm", "name"), name);

/** A name that a form begins without, so that it is no fault at first. */
function NameField({
  label,
  hint,
  value,
  onChange,
}: {
  label: string;
  hint?: string;
  value: string;
  onChange: (value: string) => void;
}) {
  return (
    <TextField
      label={label}
      {...(hint === undefined ? {} : { hint })}
      value={value}
      onChange={onChange}
      fault={value === "" ? undefined : nameFault(value)}
      isCode
    />
  );
}

export function CreateDiskDialog({ onClose }: { onClose: () => void }) {
  const stores = useAsk("datastore_list", { query: { limit: 1000 } });
  const folders = useAsk("folder_list", { query: { limit: 1000 } });
  const providers = useAsk("key_provider_list", { query: { limit: 1000 } });
  const [name, setName] = useState("");
  const [size, setSize] = useState(noSize);
  const [datastore, setDatastore] = useState("");
  const [folder, setFolder] = useState("");
  const [provider, setProvider] = useState("");
  const [isSealed, seal] = useState(true);
  const [tags, setTags] = useState(false);
  const [thick, setThick] = useState(false);
  const wanted = bytesOf(size);
  const isValid =
    nameFault(name) === undefined && wanted !== undefined && sizeFault(SIZES, size) === undefined;
  const wish = {
    name,
    size_bytes: wanted ?? 0,
    ...(datastore === "" ? {} : { datastore }),
    ...(folder === "" ? {} : { folder }),
    ...(isSealed && provider !== "" ? { key_provider: provider } : {}),
    ...(isSealed ? {} : { encrypted: false }),
    ...(isSealed && tags ? { integrity: true } : {}),
    ...(thick ? { thick } : {}),
  };
  const named = (items: readonly { name: string }[] | undefined) =>
    (items ?? []).map((each) => ({ value: each.name, label: each.name }));
  return (
    <ActionDialog
      title="Create a disk"
      submit="Create"
      actions={isValid ? [createVolume(wish)] : []}
      onClose={onClose}
    >
      <NameField
        label="Name"
        hint="VMs and disks do not have the same names."
        value={name}
        onChange={setName}
      />
      <SizeField label="Size" size={size} limits={SIZES} onChange={setSize} />
      <div className="field-row">
        <SelectField
          label="Datastore"
          value={datastore}
          onChange={setDatastore}
          options={[
            {
              value: "",
              label: (stores.data?.items.length ?? 0) > 1 ? "Choose one" : "The only one",
            },
            ...named(stores.data?.items),
          ]}
        />
        <SelectField
          label="Folder"
          value={folder}
          onChange={setFolder}
          options={[{ value: "", label: "None" }, ...named(folders.data?.items)]}
        />
      </div>
      <RadioField
        label="Protection"
        value={isSealed ? "sealed" : "clear"}
        onChange={(value) => seal(value === "sealed")}
        options={[
          {
            value: "sealed",
            label: "Sealed",
            hint: "Under a key of its own, which goes with it to a VM and back.",
          },
          { value: "clear", label: "Clear", hint: "Whoever reads the datastore reads it." },
        ]}
      />
      {isSealed ? (
        <>
          <SelectField
            label="Key provider"
            value={provider}
            onChange={setProvider}
            options={[{ value: "", label: "The only one" }, ...named(providers.data?.items)]}
          />
          <CheckField
            label="Integrity tags"
            hint="A block that was modified or replaced by an old one cannot be read. Costs space, and time on writes."
            isChecked={tags}
            onChange={setTags}
          />
        </>
      ) : null}
      <CheckField
        label="Allocate all of its space now"
        hint="Otherwise it is allocated when it is written."
        isChecked={thick}
        onChange={setThick}
      />
    </ActionDialog>
  );
}

export function BindDialog({ disk, onClose }: Of) {
  const { vms } = useEstate();
  const [vm, setVm] = useState("");
  const isFitting = vms.some(
    (each) =>
      each.name === vm &&
      each.datastore === disk.datastore &&
      each.encrypted === disk.encrypted &&
      each.template !== true,
  );
  return (
    <ActionDialog
      title={`Give ${nameOf(disk)} to a VM`}
      submit="Give"
      actions={isFitting ? [bindVolume(nameOf(disk), vm)] : []}
      onClose={onClose}
    >
      <p>
        The VM gets it as its next disk, with its content and its key; a guest that runs sees it at
        once. It takes one that is on {disk.datastore}, and{" "}
        {disk.encrypted ? "encrypted" : "not encrypted"} like the disk.
      </p>
      <TextField
        label="VM"
        value={vm}
        onChange={setVm}
        fault={vm === "" || isFitting ? undefined : `No VM that fits is called ${vm}.`}
        isCode
      />
    </ActionDialog>
  );
}

export function GrowDialog({ disk, onClose }: Of) {
  const [size, setSize] = useState(sizeOf(disk.size_bytes));
  const wanted = bytesOf(size);
  const limits = { ...SIZES, minimum: disk.size_bytes };
  const isValid =
    wanted !== undefined && wanted > disk.size_bytes && sizeFault(limits, size) === undefined;
  return (
    <ActionDialog
      title={`Grow ${nameOf(disk)}`}
      submit="Grow"
      actions={isValid ? [resizeVolume(nameOf(disk), wanted)] : []}
      onClose={onClose}
    >
      <SizeField
        label="New size"
        size={size}
        limits={limits}
        onChange={setSize}
        hint={`It has ${bytes(disk.size_bytes)}. A disk grows, and never shrinks.`}
      />
    </ActionDialog>
  );
}

export function CloneDiskDialog({
  disk,
  snapshot = "",
  snapshots,
  onClose,
}: Of & { snapshot?: string; snapshots: readonly Snapshot[] }) {
  const [name, setName] = useState("");
  const [from, setFrom] = useState(snapshot);
  const [how, setHow] = useState("copy");
  const wish = {
    volume: nameOf(disk),
    name,
    ...(from === "" ? {} : { snapshot: from }),
    ...(how === "linked" ? { linked: true } : {}),
  };
  return (
    <ActionDialog
      title={`Clone ${nameOf(disk)}`}
      submit="Clone"
      actions={nameFault(name) === undefined ? [cloneVolume(wish)] : []}
      onClose={onClose}
    >
      <NameField label="Name of the new disk" value={name} onChange={setName} />
      <SelectField
        label="Content"
        value={from}
        onChange={setFrom}
        options={[
          { value: "", label: "As it is now" },
          ...snapshots.map((each) => ({ value: each.name, label: `Snapshot ${each.name}` })),
        ]}
      />
      <RadioField
        label="Content is"
        value={how}
        onChange={setHow}
        options={[
          { value: "copy", label: "Copied", hint: "Nothing ties it to its origin." },
          {
            value: "linked",
            label: "Linked",
            hint: "Made at once: it shares the snapshot\u2019s files, and writes under a key of its own.",
          },
        ]}
      />
    </ActionDialog>
  );
}

export function SnapshotDiskDialog({ disk, onClose }: Of) {
  const [name, setName] = useState("");
  return (
    <ActionDialog
      title={`Snapshot of ${nameOf(disk)}`}
      submit="Make the snapshot"
      actions={nameFault(name) === undefined ? [snapshotVolume(nameOf(disk), name)] : []}
      onClose={onClose}
    >
      <NameField label="Name" value={name} onChange={setName} />
    </ActionDialog>
  );
}

export function RevertDiskDialog({ disk, snapshot, onClose }: Of & { snapshot: Snapshot }) {
  const [isKept, keep] = useState(true);
  const [keepAs, setKeepAs] = useState("");
  const fault = isKept && keepAs !== "" ? nameFault(keepAs) : undefined;
  const wish = {
    volume: nameOf(disk),
    snapshot: snapshot.name,
    ...(isKept && keepAs !== "" ? { keep_as: keepAs } : {}),
    ...(isKept ? {} : { discard: true }),
  };
  return (
    <ActionDialog
      title={`Revert ${nameOf(disk)} to ${snapshot.name}`}
      submit="Revert"
      actions={fault === undefined ? [revertVolume(wish)] : []}
      onClose={onClose}
      {...(isKept
        ? {}
        : {
            loses: "Everything that was written since the last snapshot of the present branch.",
            confirm: nameOf(disk),
          })}
    >
      <p>It becomes what it was on {moment(snapshot.at_unix_seconds * MS)}.</p>
      <RadioField
        label="Present content"
        value={isKept ? "keep" : "discard"}
        onChange={(value) => keep(value === "keep")}
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
    </ActionDialog>
  );
}

export function DeleteDiskSnapshotDialog({ disk, snapshot, onClose }: Of & { snapshot: Snapshot }) {
  return (
    <ActionDialog
      title={`Delete snapshot ${snapshot.name}`}
      submit="Delete"
      actions={[deleteVolumeSnapshot(nameOf(disk), snapshot.name)]}
      onClose={onClose}
      loses={`The content of ${nameOf(disk)} of ${moment(snapshot.at_unix_seconds * MS)}. The other snapshots and the present content stay.`}
    />
  );
}

export function DeleteDiskDialog({ disk, onClose, onDone }: Of<View> & { onDone: () => void }) {
  const [leave, setLeave] = useState(false);
  const clones = disk.linked_clones;
  return (
    <ActionDialog
      title={`Delete ${nameOf(disk)}`}
      submit="Delete"
      actions={[deleteVolume(nameOf(disk), leave)]}
      onClose={onClose}
      onDone={onDone}
      confirm={nameOf(disk)}
      loses={`The disk of ${bytes(disk.size_bytes)} with its snapshots, for good. Its key stays at its provider.`}
    >
      {clones.length === 0 ? null : (
        <CheckField
          label="Leave to the clones what they share"
          hint={`Linked clones: ${clones.join(", ")}. It stays on the datastore under their keys.`}
          isChecked={leave}
          onChange={setLeave}
        />
      )}
    </ActionDialog>
  );
}
