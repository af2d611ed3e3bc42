import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import {
  addDisk,
  decryptDisk,
  encryptDisk,
  moveDisk,
  removeDisk,
  resizeDisk,
} from "../../../actions/vm";
import { unbindVolume } from "../../../actions/volume";
import { useAsk } from "../../../api/ask";
import { limitsOf, textFault } from "../../../api/limits";
import { Note } from "../../../ui/Notes";
import type { Disk, Vm } from "../../../api/types";
import { bytes } from "../../../lib/units";
import { CheckField, SelectField, TextField } from "../../../ui/Field";
import { bytesOf, noSize, sizeFault, SizeField, sizeOf } from "../../../ui/SizeField";

interface OfDisk {
  vm: Vm;
  disk: Disk;
  onClose: () => void;
}

const TAGS_HINT =
  "A block that was modified or replaced by an old one cannot be read. Costs space, and time on writes.";

export function AddDiskDialog({ vm, onClose }: { vm: Vm; onClose: () => void }) {
  const [size, setSize] = useState(noSize);
  const [isSwap, setSwap] = useState(false);
  const [tags, setTags] = useState(false);
  const limits = limitsOf("AddDisk", "size_bytes");
  const wanted = bytesOf(size);
  const isValid = wanted !== undefined && sizeFault(limits, size) === undefined;
  return (
    <ActionDialog
      title={`Add a disk to ${vm.name}`}
      submit="Add"
      actions={isValid ? [addDisk(vm, { size: wanted, isSwap, integrity: tags && !isSwap })] : []}
      onClose={onClose}
    >
      <SizeField label="Size" size={size} limits={limits} onChange={setSize} />
      <CheckField
        label="Swap"
        hint="It is empty at each start; the guest finds it by its label, swap0 and so on."
        isChecked={isSwap}
        onChange={setSwap}
      />
      {vm.encrypted && !isSwap ? (
        <CheckField label="Integrity tags" hint={TAGS_HINT} isChecked={tags} onChange={setTags} />
      ) : null}
    </ActionDialog>
  );
}

export function ResizeDialog({ vm, disk, onClose }: OfDisk) {
  const [size, setSize] = useState(sizeOf(disk.size_bytes));
  const limits = { ...limitsOf("ResizeDisk", "size_bytes"), minimum: disk.size_bytes };
  const wanted = bytesOf(size);
  const isValid =
    wanted !== undefined && wanted > disk.size_bytes && sizeFault(limits, size) === undefined;
  return (
    <ActionDialog
      title={`Grow ${disk.name} of ${vm.name}`}
      submit="Grow"
      actions={isValid ? [resizeDisk(vm, disk.name, wanted)] : []}
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

export function MoveDialog({ vm, disk, onClose }: OfDisk) {
  const stores = useAsk("datastore_list", { query: { limit: 1000 } });
  const [datastore, setDatastore] = useState("");
  const present = disk.datastore ?? vm.datastore;
  const reached = (stores.data?.items ?? []).filter(
    ({ name, hosts = [] }) => name !== present && hosts.some(({ host }) => host === vm.host),
  );
  return (
    <ActionDialog
      title={`Move ${disk.name} of ${vm.name}`}
      submit="Move"
      actions={datastore === "" ? [] : [moveDisk(vm, disk.name, datastore)]}
      onClose={onClose}
    >
      <p>
        Its blocks are copied with its snapshots as they are stored, without being decrypted; the VM
        runs on meanwhile, and is not started if it is off. Until that is done it takes its space in
        both datastores.
      </p>
      {stores.data !== undefined && reached.length === 0 ? (
        <Note tone="warning" title="Its host reaches no other datastore">
          On the screen of a datastore, hosts are given the use of it.
        </Note>
      ) : null}
      <SelectField
        label="Datastore"
        value={datastore}
        onChange={setDatastore}
        options={[
          { value: "", label: "Choose one" },
          ...reached.map(({ name, free_bytes }) => ({
            value: name,
            label: `${name}: ${bytes(free_bytes)} free`,
          })),
        ]}
      />
    </ActionDialog>
  );
}

/** Takes a disk from its VM, as one that no VM has. */
export function KeepDialog({ vm, disk, onClose }: OfDisk) {
  const [name, setName] = useState("");
  const fault = name === "" ? undefined : textFault(limitsOf("CloneVm", "name"), name);
  return (
    <ActionDialog
      title={`Take ${disk.name} from ${vm.name}`}
      submit="Take"
      actions={
        fault === undefined
          ? [unbindVolume(`${vm.name}/${disk.name}`, name === "" ? undefined : name)]
          : []
      }
      onClose={onClose}
    >
      <p>
        It is kept with its content and its key, among the disks that no VM has. A guest that runs
        is asked to release it. A disk under the VM&rsquo;s own key stays with the VM: clone it
        instead.
      </p>
      <TextField
        label="Its name from then on"
        hint="Without one, the name that it had before."
        value={name}
        onChange={setName}
        fault={fault}
        isCode
        isOptional
      />
    </ActionDialog>
  );
}

export function RemoveDialog({ vm, disk, onClose }: OfDisk) {
  return (
    <ActionDialog
      title={`Remove ${disk.name} of ${vm.name}`}
      submit="Remove"
      actions={[removeDisk(vm, disk.name)]}
      onClose={onClose}
      confirm={disk.name}
      loses={`The disk of ${bytes(disk.size_bytes)} with its snapshots, for good.`}
    />
  );
}

export function EncryptDialog({ vm, disk, onClose }: OfDisk) {
  const providers = useAsk("key_provider_list", { query: { limit: 1000 } });
  const [tags, setTags] = useState(false);
  const [provider, setProvider] = useState("");
  return (
    <ActionDialog
      title={`Encrypt ${disk.name} of ${vm.name}`}
      submit="Encrypt"
      actions={[encryptDisk(vm, disk.name, tags, provider === "" ? undefined : provider)]}
      onClose={onClose}
    >
      <p>
        Its content and its snapshots are rewritten under a key. Until that is done, the VM cannot
        be started.
      </p>
      {vm.encrypted ? null : (
        <SelectField
          label="Provider of the VM&rsquo;s key"
          value={provider}
          onChange={setProvider}
          options={[
            { value: "", label: "The policy\u2019s, or the only one" },
            ...(providers.data?.items ?? []).map(({ name }) => ({ value: name, label: name })),
          ]}
        />
      )}
      <CheckField label="Integrity tags" hint={TAGS_HINT} isChecked={tags} onChange={setTags} />
    </ActionDialog>
  );
}

export function DecryptDialog({ vm, disk, onClose }: OfDisk) {
  return (
    <ActionDialog
      title={`Decrypt ${disk.name} of ${vm.name}`}
      submit="Decrypt"
      actions={[decryptDisk(vm, disk.name)]}
      onClose={onClose}
      confirm={disk.name}
      loses="Its secrecy: anyone who reads the datastore reads the disk and its snapshots, also later, from copies."
    />
  );
}
