import { useState } from "react";
import type { Action } from "../../actions/action";
import { ActionDialog } from "../../actions/ActionDialog";
import { addDirectory, addPools } from "../../actions/datastore";
import { limitsOf, textFault } from "../../api/limits";
import { optional } from "../../lib/words";
import { RadioField, TextField } from "../../ui/Field";
import { HostField } from "../../ui/HostField";
import { noClient, wayOf } from "./ceph";
import { CephFields } from "./CephFields";

const KINDS = [
  { value: "directory", label: "Directory", hint: "Of one host, which is there already." },
  { value: "ceph", label: "Ceph pool", hint: "Of a cluster that several hosts reach." },
];

export function AddDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [kind, setKind] = useState("directory");
  const [host, setHost] = useState("");
  const [path, setPath] = useState("");
  const [pools, setPools] = useState({ pool: "", dataPool: "", namespace: "" });
  const [client, setClient] = useState(noClient);

  const faults = {
    name: textFault(limitsOf("AddDatastore", "name"), name),
    path: textFault(limitsOf("AddDatastore", "path"), path),
    pool: textFault(limitsOf("AddCeph", "pool"), pools.pool),
    dataPool:
      pools.dataPool === ""
        ? undefined
        : textFault(limitsOf("AddCeph", "data_pool"), pools.dataPool),
    namespace:
      pools.namespace === ""
        ? undefined
        : textFault(limitsOf("AddCeph", "namespace"), pools.namespace),
  };
  const actions = (): readonly Action[] => {
    if (faults.name !== undefined) return [];
    if (kind === "directory")
      return faults.path === undefined ? [addDirectory(name, path, optional(host))] : [];
    const way = wayOf(client);
    if (way === undefined || faults.pool !== undefined) return [];
    if (faults.dataPool !== undefined || faults.namespace !== undefined) return [];
    const { pool, dataPool, namespace } = pools;
    const named = { pool, dataPool: optional(dataPool), namespace: optional(namespace) };
    return [addPools(name, named, way, optional(host))];
  };

  return (
    <ActionDialog
      title="Add a datastore"
      submit="Add"
      size="wide"
      actions={actions()}
      onClose={onClose}
    >
      <div className="field-row">
        <TextField
          label="Name"
          value={name}
          onChange={setName}
          fault={name === "" ? undefined : faults.name}
        />
        <HostField value={host} onChange={setHost} />
      </div>
      <RadioField label="Kind" value={kind} onChange={setKind} options={KINDS} />
      {kind === "directory" ? (
        <TextField
          label="Path"
          hint="An existing directory on ext4, XFS, btrfs or tmpfs. It is never created: a missing one may be on a disk that is not mounted."
          placeholder="/srv/vms"
          value={path}
          onChange={setPath}
          fault={path === "" ? undefined : faults.path}
          isCode
        />
      ) : (
        <>
          <div className="field-row">
            <TextField
              label="Pool"
              hint="Replicated."
              value={pools.pool}
              onChange={(pool) => setPools({ ...pools, pool })}
              fault={pools.pool === "" ? undefined : faults.pool}
              isCode
            />
            <TextField
              label="Data pool"
              hint="For volumes&rsquo; data, such as an erasure-coded one."
              value={pools.dataPool}
              onChange={(dataPool) => setPools({ ...pools, dataPool })}
              fault={faults.dataPool}
              isCode
              isOptional
            />
            <TextField
              label="Namespace"
              placeholder="strongroom"
              value={pools.namespace}
              onChange={(namespace) => setPools({ ...pools, namespace })}
              fault={faults.namespace}
              isCode
              isOptional
            />
          </div>
          <CephFields draft={client} onChange={setClient} />
        </>
      )}
    </ActionDialog>
  );
}
