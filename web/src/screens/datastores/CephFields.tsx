import { TextField } from "../../ui/Field";
import { cephFaults, type CephDraft } from "./ceph";

/** How a host is a client of a Ceph cluster. */
export function CephFields({
  draft,
  onChange,
}: {
  draft: CephDraft;
  onChange: (draft: CephDraft) => void;
}) {
  const faults = cephFaults(draft);
  return (
    <>
      <TextField
        label="Ceph user"
        hint="Each host has one of its own: a host that is lost is shut out by it."
        placeholder="client.host1"
        value={draft.user}
        onChange={(user) => onChange({ ...draft, user })}
        fault={draft.user === "" ? undefined : faults.user}
        isCode
      />
      <div className="field-row">
        <TextField
          label="Configuration file"
          placeholder="/etc/ceph/ceph.conf"
          value={draft.conf}
          onChange={(conf) => onChange({ ...draft, conf })}
          fault={faults.conf}
          isCode
          isOptional
        />
        <TextField
          label="Keyring file"
          placeholder="/etc/ceph/ceph.USER.keyring"
          value={draft.keyring}
          onChange={(keyring) => onChange({ ...draft, keyring })}
          fault={faults.keyring}
          isCode
          isOptional
        />
      </div>
    </>
  );
}
