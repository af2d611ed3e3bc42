import { useState } from "react";
import { ActionDialog } from "../actions/ActionDialog";
import type { Vm } from "../api/types";
import { bytes } from "../lib/units";
import { TextField } from "../ui/Field";
import { metaData, replaceSeed } from "./actions";
import { SEED_FILE_BYTES_MAX } from "./seed";

const fits = (text: string) => new TextEncoder().encode(text).length <= SEED_FILE_BYTES_MAX;

/** Another seed for a VM that was made with one. */
export function SeedDialog({ vm, onClose }: { vm: Vm; onClose: () => void }) {
  const [userData, setUserData] = useState("");
  const [networkConfig, setNetworkConfig] = useState("");
  const [meta, setMeta] = useState(metaData(vm));
  const isReady = userData !== "" && [userData, networkConfig, meta].every(fits);
  const files = {
    userData,
    metaData: meta,
    ...(networkConfig === "" ? {} : { networkConfig }),
  };
  return (
    <ActionDialog
      title={`Replace the seed of ${vm.name}`}
      submit="Replace"
      actions={isReady ? [replaceSeed(vm.name, files, meta !== metaData(vm))] : []}
      onClose={onClose}
      loses="The seed that it has. The guest sees the new one from its next start on."
    >
      <TextField
        label="User data"
        isLong
        isCode
        hint={`At most ${bytes(SEED_FILE_BYTES_MAX)}.`}
        value={userData}
        onChange={setUserData}
      />
      <TextField
        label="Meta-data"
        isLong
        isCode
        hint="Cloud-init repeats what it does once per instance if the instance-id is another one."
        value={meta}
        onChange={setMeta}
      />
      <TextField
        label="Network configuration"
        isOptional
        isLong
        isCode
        value={networkConfig}
        onChange={setNetworkConfig}
      />
    </ActionDialog>
  );
}
