import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { migrate } from "../../../actions/vm";
import { useAsk } from "../../../api/ask";
import { limitsOf, numberFault } from "../../../api/limits";
import type { Vm } from "../../../api/types";
import { bytes } from "../../../lib/units";
import { SelectField, TextField } from "../../../ui/Field";
import { Note } from "../../../ui/Notes";
import { bytesOf, noSize, sizeFault, SizeField } from "../../../ui/SizeField";

function passes(runs: boolean, hasVolumes: boolean): string {
  if (!hasVolumes) return "its memory passes";
  return runs ? "its memory and its volumes pass" : "its volumes pass";
}

export function MigrateDialog({ vm, onClose }: { vm: Vm; onClose: () => void }) {
  const hosts = useAsk("host_list", { query: { limit: 1000 } });
  const stores = useAsk("datastore_list", { query: { limit: 1000 } });
  const [host, setHost] = useState("");
  const [datastore, setDatastore] = useState("");
  const [pause, setPause] = useState("300");
  const [rate, setRate] = useState(noSize);
  const [channels, setChannels] = useState("1");
  const runs = vm.power === "running" || vm.power === "paused";
  const fault = runs ? numberFault(limitsOf("MoveToHost", "pause_ms"), Number(pause)) : undefined;
  const rateLimits = limitsOf("MoveToHost", "bytes_per_second");
  const isLimited = runs || datastore !== "";
  const bandwidth = isLimited ? bytesOf(rate) : undefined;
  const rateFault = bandwidth === undefined ? undefined : sizeFault(rateLimits, rate);
  const channelsFault = runs
    ? numberFault(limitsOf("MoveToHost", "channels"), Number(channels))
    : undefined;
  const isValid = [fault, rateFault, channelsFault].every((each) => each === undefined);
  const others = (hosts.data?.items ?? []).filter(({ name }) => name !== vm.host);
  const reached = (stores.data?.items ?? []).filter(
    (store) => host === "" || (store.hosts ?? []).some((each) => each.host === host),
  );
  const wish = {
    host: host === "" ? undefined : host,
    datastore: datastore === "" ? undefined : datastore,
    pauseMs: runs && pause !== "300" ? Number(pause) : undefined,
    bandwidth,
    channels: runs && channels !== "1" ? Number(channels) : undefined,
  };
  return (
    <ActionDialog
      title={`Move ${vm.name} to another host`}
      submit="Move"
      actions={isValid ? [migrate(vm, wish)] : []}
      onClose={onClose}
    >
      {hosts.data !== undefined && others.length === 0 ? (
        <Note tone="warning" title="There is no other host">
          <code>strongroom host token NAME</code> makes a token with which a machine joins.
        </Note>
      ) : null}
      <SelectField
        label="Host"
        value={host}
        onChange={setHost}
        options={[
          { value: "", label: "The one that fits best" },
          ...others.map((each) => ({
            value: each.name,
            label: `${each.name}: ${bytes(each.memory_free_bytes)} memory free${each.maintenance === true ? ", in maintenance" : ""}`,
          })),
        ]}
      />
      <SelectField
        label="Datastore"
        hint="Another one takes the volumes along."
        value={datastore}
        onChange={setDatastore}
        options={[
          { value: "", label: `Stay on ${vm.datastore}` },
          ...reached
            .filter(({ name }) => name !== vm.datastore)
            .map(({ name }) => ({ value: name, label: name })),
        ]}
      />
      {runs ? (
        <TextField
          label="Longest pause of the guest, in ms"
          hint={`Its memory passes ${vm.migration === "disabled" ? "in plain text" : "encrypted"} while it runs.`}
          inputMode="numeric"
          value={pause}
          onChange={setPause}
          fault={fault}
        />
      ) : null}
      {isLimited ? (
        <details className="what">
          <summary>How {passes(runs, datastore !== "")}</summary>
          <div className="field-row">
            <SizeField
              label="At most, a second"
              size={rate}
              limits={rateLimits}
              onChange={setRate}
              hint="Without it, what the network gives."
              isOptional
            />
            {runs ? (
              <TextField
                label="Channels"
                hint="Each takes a processor at either end."
                inputMode="numeric"
                value={channels}
                onChange={setChannels}
                fault={channelsFault}
              />
            ) : null}
          </div>
        </details>
      ) : null}
    </ActionDialog>
  );
}
