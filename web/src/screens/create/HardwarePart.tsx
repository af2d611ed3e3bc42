import { USER_NETWORK } from "../../actions/network";
import { useAsk } from "../../api/ask";
import { limitsOf } from "../../api/limits";
import { bytes } from "../../lib/units";
import { useRefusal } from "../../session/useMe";
import { CheckField, SelectField, TextField } from "../../ui/Field";
import { Panel } from "../../ui/Panel";
import { SizeField } from "../../ui/SizeField";
import type { PartProps } from "./CreateVm";
import { NO_NETWORK } from "./draft";

export function HardwarePart({ draft, faults, change }: PartProps) {
  const refusal = useRefusal();
  const maySeeHosts = refusal("host_list") === undefined;
  const maySeeGroups = refusal("placement_group_list") === undefined;
  const hosts = useAsk("host_list", { query: { limit: 1000 } }, { enabled: maySeeHosts });
  const groups = useAsk(
    "placement_group_list",
    { query: { limit: 1000 } },
    { enabled: maySeeGroups },
  );
  const networks = useAsk("network_list", { query: { limit: 1000 } });
  return (
    <Panel title="Hardware">
      <div className="form">
        <div className="field-row">
          <TextField
            label="Processors"
            inputMode="numeric"
            value={draft.cpus}
            onChange={(cpus) => change({ cpus })}
            fault={faults.cpus}
          />
          <SizeField
            label="Memory"
            size={draft.memory}
            limits={limitsOf("CreateVm", "memory_bytes")}
            onChange={(memory) => change({ memory })}
          />
        </div>
        <div className="field-row">
          <TextField
            label="Most processors while it runs"
            hint="They are plugged in without a restart."
            inputMode="numeric"
            value={draft.maxCpus}
            onChange={(maxCpus) => change({ maxCpus })}
            fault={faults.maxCpus}
            isOptional
          />
          <SizeField
            label="Most memory while it runs"
            hint="More than the memory by a multiple of 128 MiB."
            size={draft.maxMemory}
            limits={limitsOf("CreateVm", "memory_bytes")}
            onChange={(maxMemory) => change({ maxMemory })}
            isOptional
          />
        </div>
        {faults.maxMemory === undefined ? null : <p className="field-fault">{faults.maxMemory}</p>}
        <TextField
          label="Processor that the guest sees"
          hint="host, a level such as x86-64-v3, or a model of QEMU. Without one, that of its policy, or host."
          value={draft.processor}
          onChange={(processor) => change({ processor })}
          fault={faults.processor}
          isCode
          isOptional
        />
        <div className="field-row">
          <SelectField
            label="Network"
            value={draft.network}
            onChange={(network) => change({ network })}
            options={[
              { value: USER_NETWORK, label: "User network, without rights on the host" },
              ...(networks.data?.items ?? []).map(({ name, vlan }) => ({
                value: name,
                label: typeof vlan === "number" ? `${name}, VLAN ${vlan}` : name,
              })),
              { value: NO_NETWORK, label: "None" },
            ]}
          />
          {maySeeGroups && (groups.data?.items.length ?? 0) > 0 ? (
            <SelectField
              label="Placement group"
              hint="Its VMs are kept on different hosts, or near each other."
              value={draft.placementGroup}
              onChange={(placementGroup) => change({ placementGroup })}
              options={[
                { value: "", label: "None" },
                ...(groups.data?.items ?? []).map(({ name, keep }) => ({
                  value: name,
                  label: `${name}: ${keep}`,
                })),
              ]}
            />
          ) : null}
          {maySeeHosts ? (
            <SelectField
              label="Host"
              value={draft.host}
              onChange={(host) => change({ host })}
              options={[
                { value: "", label: "The one that fits best" },
                ...(hosts.data?.items ?? []).map(({ name, memory_free_bytes }) => ({
                  value: name,
                  label: `${name}: ${bytes(memory_free_bytes)} memory free`,
                })),
              ]}
            />
          ) : null}
        </div>
        <CheckField
          label="UEFI"
          hint="Instead of a BIOS; its variables are in a sealed volume."
          isChecked={draft.isUefi}
          onChange={(isUefi) => change({ isUefi })}
        />
        <CheckField
          label="TPM 2.0"
          hint="Its state is sealed, and cloned VMs get their own."
          isChecked={draft.hasTpm}
          onChange={(hasTpm) => change({ hasTpm })}
        />
        <TextField
          label="CD-ROM to install from"
          hint="A file in one of the host&rsquo;s boot directories."
          placeholder="/srv/boot/debian.iso"
          value={draft.cdrom}
          onChange={(cdrom) => change({ cdrom })}
          fault={faults.cdrom}
          isCode
          isOptional
        />
        <SelectField
          label="After a crash or a power failure"
          value={draft.restart}
          onChange={(value) => change({ restart: value === "never" ? "never" : "on_failure" })}
          options={[
            { value: "on_failure", label: "Start it again" },
            { value: "never", label: "Leave it off" },
          ]}
        />
      </div>
    </Panel>
  );
}
