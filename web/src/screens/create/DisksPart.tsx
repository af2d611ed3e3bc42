import { useAsk } from "../../api/ask";
import { limitsOf } from "../../api/limits";
import { bytes } from "../../lib/units";
import { Button, IconButton } from "../../ui/Button";
import { CheckField, SelectField } from "../../ui/Field";
import { Panel } from "../../ui/Panel";
import { SizeField } from "../../ui/SizeField";
import { ImageField } from "../../upload/ImageField";
import type { PartProps } from "./CreateVm";
import type { DraftDisk } from "./draft";

export function DisksPart({ draft, faults, change }: PartProps) {
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
        <SelectField
          label="How the guest reaches its disks"
          value={draft.frontend}
          onChange={(value) => change({ frontend: value === "nbd" ? "nbd" : "vhost_user" })}
          options={[
            { value: "vhost_user", label: "vhost-user, over memory that worker and guest share" },
            { value: "nbd", label: "NBD, through QEMU\u2019s block layer" },
          ]}
        />
        <ImageField
          label="Image for disk 0"
          isOptional
          image={draft.image}
          hint="qcow2, raw, vmdk or vhdx. Disks are empty without one."
          onChange={(image) => change({ image })}
        />
        {faults.image === undefined || draft.image?.format === undefined ? null : (
          <p className="field-fault">{faults.image}</p>
        )}
        {draft.image === undefined ? null : (
          <p className="field-hint">
            It is sent from this page, which has to stay open until it is there; the VM is made with
            it, or not at all.
          </p>
        )}
      </div>
    </Panel>
  );
}
