import { TextField } from "../../ui/Field";
import { Panel } from "../../ui/Panel";
import type { PartProps } from "./CreateVm";

export function SeedPart({ draft, faults, change }: PartProps) {
  return (
    <Panel title="Cloud-init">
      <div className="form">
        <TextField
          label="User data"
          isOptional
          isLong
          isCode
          hint="On a sealed disk that is read-only for the guest. It is made here, and may hold secrets."
          fault={faults.userData}
          value={draft.userData}
          onChange={(userData) => change({ userData })}
        />
        <TextField
          label="Network configuration"
          isOptional
          isLong
          isCode
          fault={faults.networkConfig}
          value={draft.networkConfig}
          onChange={(networkConfig) => change({ networkConfig })}
        />
      </div>
    </Panel>
  );
}
