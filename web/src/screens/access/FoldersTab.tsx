import { useState } from "react";
import { Link } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { createFolder, deleteFolder, setQuota } from "../../actions/access";
import { useAsk } from "../../api/ask";
import { limitsOf, numberFault, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { bytes, count, plural } from "../../lib/units";
import { useMay } from "../../session/useMay";
import { TextField } from "../../ui/Field";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Menu } from "../../ui/Menu";
import { Meter } from "../../ui/Meter";
import { Empty } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { bytesOf, noSize, sizeFault, SizeField, sizeOf } from "../../ui/SizeField";

type Folder = Schemas["Folder"];

export function FoldersTab() {
  const asked = useAsk("folder_list", { query: { limit: 1000 } }, { everyMs: 30_000 });
  const [isCreating, create] = useState(false);
  return (
    <>
      <div className="buttons">
        <MayButton
          operation="folder_create"
          look="primary"
          icon="plus"
          onPress={() => create(true)}
        >
          Create a folder&hellip;
        </MayButton>
        <span className="soft">
          Roles are given for a folder with the VMs and disks in it; folders do not nest.
        </span>
      </div>
      <Listed
        asked={asked}
        empty={
          <Empty icon="folder" title="There is no folder yet">
            A folder is for a tenant or a team: roles count in it, and a quota says how much its VMs
            may have together.
          </Empty>
        }
      >
        {(folders) => (
          <div className="grid">
            {folders.map((folder) => (
              <FolderPanel key={folder.id} folder={folder} />
            ))}
          </div>
        )}
      </Listed>
      {isCreating ? <CreateDialog onClose={() => create(false)} /> : null}
    </>
  );
}

interface Measure {
  label: string;
  used: number;
  most: number | null | undefined;
  show: (value: number) => string;
}

function measuresOf({ quota, used }: Folder): readonly Measure[] {
  return [
    { label: "VMs and disks of none", used: used.vms, most: quota?.vms, show: count },
    { label: "Processors", used: used.cpus, most: quota?.cpus, show: count },
    { label: "Memory", used: used.memory_bytes, most: quota?.memory_bytes, show: bytes },
    { label: "Disks", used: used.disk_bytes, most: quota?.disk_bytes, show: bytes },
  ];
}

function FolderPanel({ folder }: { folder: Folder }) {
  const may = useMay();
  const [asked, ask] = useState<"quota" | "delete">();
  const close = () => ask(undefined);
  return (
    <Panel
      title={folder.name}
      aside={
        <Menu
          label={`Actions for ${folder.name}`}
          icon="more"
          look="quiet"
          choices={[
            may("folder_set", {
              id: "quota",
              label: "Set its quota\u2026",
              choose: () => ask("quota"),
            }),
            may("folder_delete", {
              id: "delete",
              label: "Delete\u2026",
              isDangerous: true,
              ...(folder.used.vms > 0
                ? { refusal: `${plural(folder.used.vms, "VM or disk", "VMs and disks")} in it.` }
                : {}),
              choose: () => ask("delete"),
            }),
          ]}
        />
      }
    >
      <div className="stack">
        {measuresOf(folder).map(({ label, used, most, show }) =>
          typeof most === "number" ? (
            <Meter key={label} label={label} used={used} total={most} show={show} fullFrom={1} />
          ) : (
            <div key={label} className="meter-words">
              <span>{label}</span>
              <span className="soft number">{show(used)}, no limit</span>
            </div>
          ),
        )}
        <Link href={`${addresses.vms}?folder=${encodeURIComponent(folder.name)}`}>Its VMs</Link>
      </div>
      {asked === "quota" ? <QuotaDialog folder={folder} onClose={close} /> : null}
      {asked === "delete" ? (
        <ActionDialog
          title={`Delete folder ${folder.name}`}
          submit="Delete"
          actions={[deleteFolder(folder.name)]}
          confirm={folder.name}
          onClose={close}
          loses={<p>The folder with its quota, and the roles that were given for it.</p>}
        />
      ) : null}
    </Panel>
  );
}

function CreateDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const fault = textFault(limitsOf("CreateFolder", "name"), name);
  return (
    <ActionDialog
      title="Create a folder"
      submit="Create"
      actions={fault === undefined ? [createFolder(name)] : []}
      onClose={onClose}
    >
      <TextField
        label="Name"
        value={name}
        onChange={setName}
        fault={name === "" ? undefined : fault}
      />
    </ActionDialog>
  );
}

const typed = (value: number | null | undefined) =>
  typeof value === "number" ? String(value) : "";
const sized = (value: number | null | undefined) =>
  typeof value === "number" ? sizeOf(value) : noSize;

function QuotaDialog({ folder, onClose }: { folder: Folder; onClose: () => void }) {
  const quota = folder.quota ?? {};
  const [vms, setVms] = useState(typed(quota.vms));
  const [cpus, setCpus] = useState(typed(quota.cpus));
  const [memory, setMemory] = useState(sized(quota.memory_bytes));
  const [disks, setDisks] = useState(sized(quota.disk_bytes));
  const number = (text: string) => (/^[0-9]+$/.test(text) ? Number(text) : undefined);
  const countFault = (field: "vms" | "cpus", text: string) =>
    text === "" ? undefined : numberFault(limitsOf("Quota", field), number(text), count);
  const faults = [
    countFault("vms", vms),
    countFault("cpus", cpus),
    memory.amount === "" ? undefined : sizeFault(limitsOf("Quota", "memory_bytes"), memory),
    disks.amount === "" ? undefined : sizeFault(limitsOf("Quota", "disk_bytes"), disks),
  ];
  const [mostVms, mostCpus] = [number(vms), number(cpus)];
  const [mostMemory, mostDisks] = [bytesOf(memory), bytesOf(disks)];
  const next: Schemas["Quota"] = {
    ...(mostVms === undefined ? {} : { vms: mostVms }),
    ...(mostCpus === undefined ? {} : { cpus: mostCpus }),
    ...(mostMemory === undefined ? {} : { memory_bytes: mostMemory }),
    ...(mostDisks === undefined ? {} : { disk_bytes: mostDisks }),
  };
  return (
    <ActionDialog
      title={`The quota of ${folder.name}`}
      submit="Set"
      actions={faults.every((fault) => fault === undefined) ? [setQuota(folder.name, next)] : []}
      onClose={onClose}
    >
      <p>What is left empty is not limited. VMs that are there already stay, and start.</p>
      <div className="field-row">
        <TextField
          label="VMs, and disks of none"
          inputMode="numeric"
          value={vms}
          onChange={setVms}
          fault={faults[0]}
          isOptional
        />
        <TextField
          label="Processors"
          inputMode="numeric"
          value={cpus}
          onChange={setCpus}
          fault={faults[1]}
          isOptional
        />
      </div>
      <SizeField
        label="Memory"
        size={memory}
        limits={limitsOf("Quota", "memory_bytes")}
        onChange={setMemory}
        isOptional
      />
      <SizeField
        label="Disks"
        size={disks}
        limits={limitsOf("Quota", "disk_bytes")}
        onChange={setDisks}
        isOptional
      />
    </ActionDialog>
  );
}
