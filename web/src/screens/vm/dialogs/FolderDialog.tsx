import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { moveToFolder } from "../../../actions/vm";
import { useAsk } from "../../../api/ask";
import type { VmSummary } from "../../../api/types";
import { SelectField } from "../../../ui/Field";
import { named } from "./naming";

type Of = Pick<VmSummary, "name" | "folder">;

/** Moves VMs into a folder, or out of all. */
export function FolderDialog({ vms, onClose }: { vms: readonly Of[]; onClose: () => void }) {
  const folders = useAsk("folder_list", { query: { limit: 1000 } });
  const only = vms.length === 1 ? (vms[0]?.folder ?? "") : undefined;
  const [folder, setFolder] = useState(only ?? "");
  const wanted = folder === "" ? undefined : folder;
  const moving = vms.filter((vm) => (vm.folder ?? "") !== folder);
  return (
    <ActionDialog
      title={`Folder of ${named(vms)}`}
      submit="Move"
      actions={moving.map((vm) => moveToFolder(vm, wanted))}
      onClose={onClose}
    >
      <SelectField
        label="Folder"
        hint="The roles that count in it count for the VM from then on, so you need all that they give."
        value={folder}
        onChange={setFolder}
        options={[
          { value: "", label: "None" },
          ...(folders.data?.items ?? []).map(({ name }) => ({ value: name, label: name })),
        ]}
      />
    </ActionDialog>
  );
}
