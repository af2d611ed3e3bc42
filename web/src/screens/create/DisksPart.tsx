import { useAsk } from "../../api/ask";
import { limitsOf } from "../../api/limits";
import { bytes } from "../../lib/units";
import { Button, IconButton } from "../../ui/Button";
import { CheckField, SelectField } from "../../ui/Field";
import { Panel } from "../../ui/Panel";
import { SizeField } from "../../ui/SizeField";
import type { PartProps } from "./CreateVm";
import type { DraftDisk } from "./draft";

export function DisksPart({ draft, change }: PartProps) {
  const stores = useAsk("datastore_list", { query: { limit: 1000 } });
  const most = limitsOf("CreateVm", "disks").maxItems ?? 0;
  const replace = (disk: DraftDisk) =>
    change({ disks: draft.disks.map((each) => (each.key === disk.key ? disk : each)) });
  const next = Math.max(-1, ...draft.disks.map(({ key }) => key)) + 1;
  return (
    <Panel title="Disks">
      <div className="form">
        <SelectField
          label="Datastore"
          value={draft.datastore}
          onChange={(datastore) => change({ datastore })}
          options={[
            {
              value: "",
              label: (stores.data?.items.length ?? 0) > 1 ? "Choose one" : "The only one",
            },
            ...(stores.data?.items ?? []).map(({ name, free_bytes }) => ({
              value: name,
              label: `${name}: ${bytes(free_bytes)} free`,
            })),
          ]}
        />
        {draft.disks.map((disk, index) => (
          <div key={disk.key} className="create-disk">
            <SizeField
              label={`Disk ${index}`}
              size={disk.size}
              limits={limitsOf("AddDisk", "size_bytes")}
              onChange={(size) => replace({ ...disk, size })}
            />
            <CheckField
              label="Swap"
              isChecked={disk.isSwap}
              onChange={(isSwap) => replace({ ...disk, isSwap })}
            />
            <IconButton
              icon="close"
              label={`Leave out disk ${index}`}
              onPress={() => change({ disks: draft.disks.filter(({ key }) => key !== disk.key) })}
            />
          </div>
        ))}
        <div className="buttons">
          <Button
            icon="plus"
            isDisabled={draft.disks.length >= most}
            onPress={() =>
              change({
                disks: [
                  ...draft.disks,
                  { key: next, size: { amount: "20", unit: "GiB" }, isSwap: false },
                ],
              })
            }
          >
            Another disk
          </Button>
        </div>
        <p className="field-hint">
          Disks are empty at first. <code>strongroom vm disk import</code> writes an image to one of
          a VM that is off.
        </p>
      </div>
    </Panel>
  );
}
