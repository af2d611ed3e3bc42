import { useState } from "react";
import { useLocation } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { admit, evacuate, fence, removeHost, setMaintenance } from "../../actions/host";
import { useRun } from "../../actions/run";
import { limitsOf, numberFault } from "../../api/limits";
import type { Schemas, VmSummary } from "../../api/types";
import { addresses } from "../../app/addresses";
import { count, duration, plural } from "../../lib/units";
import { useMay } from "../../session/useMay";
import { CheckField, TextField } from "../../ui/Field";
import { Menu, type Choice } from "../../ui/Menu";
import { bytesOf, noSize, sizeFault, SizeField } from "../../ui/SizeField";

type Host = Schemas["Host"];
type Asked = "evacuate" | "fence" | "admit" | "remove";

interface Props {
  host: Host;
  vms: readonly VmSummary[];
}

export function HostActions({ host, vms }: Props) {
  const may = useMay();
  const run = useRun();
  const [, go] = useLocation();
  const [asked, ask] = useState<Asked>();
  const close = () => ask(undefined);
  const isIn = host.maintenance === true;
  const isLost = host.fenced !== undefined && host.fenced !== null;
  const choices: readonly Choice[] = [
    may("host_set", {
      id: "maintenance",
      label: isIn ? "End maintenance" : "Set in maintenance",
      hint: isIn ? "VMs are placed and started here again" : "VMs that run go on; none is started",
      choose: () => void run([setMaintenance(host, !isIn)]),
    }),
    may("host_evacuate", {
      id: "evacuate",
      label: "Evacuate\u2026",
      hint: `Sets maintenance, and moves ${plural(vms.length, "VM")} elsewhere`,
      choose: () => ask("evacuate"),
    }),
    ...(isLost
      ? [
          may("host_admit", {
            id: "admit",
            label: "Admit\u2026",
            hint: "It uses its Ceph clusters again",
            choose: () => ask("admit"),
          }),
        ]
      : []),
    may("host_fence", {
      id: "fence",
      label: "Declare lost\u2026",
      hint: "For a machine that will not come back by itself",
      isDangerous: true,
      choose: () => ask("fence"),
    }),
    may("host_remove", {
      id: "remove",
      label: "Remove\u2026",
      isDangerous: true,
      ...(vms.length > 0 ? { refusal: `It has ${plural(vms.length, "VM")}: evacuate it.` } : {}),
      choose: () => ask("remove"),
    }),
  ];
  return (
    <>
      <Menu label={`Actions for ${host.name}`} choices={choices}>
        Actions
      </Menu>
      {asked === "evacuate" ? <EvacuateDialog host={host} vms={vms} onClose={close} /> : null}
      {asked === "fence" ? <FenceDialog host={host} vms={vms} onClose={close} /> : null}
      {asked === "admit" ? <AdmitDialog host={host} onClose={close} /> : null}
      {asked === "remove" ? (
        <ActionDialog
          title={`Remove ${host.name}`}
          submit="Remove"
          actions={[removeHost(host)]}
          confirm={host.name}
          onClose={close}
          onDone={() => go(addresses.hosts)}
          loses={
            <p>
              Its certificate, for good: it takes no orders and gets no keys until it joins again
              with another token. Its datastores have to be removed first.
            </p>
          }
        />
      ) : null}
    </>
  );
}

const SECOND = duration;

function EvacuateDialog({ host, vms, onClose }: Props & { onClose: () => void }) {
  const [shutDown, setShutDown] = useState(false);
  const [timeout, setTimeout] = useState("60");
  const [withVolumes, setWithVolumes] = useState(false);
  const [rate, setRate] = useState(noSize);
  const running = vms.filter(({ power }) => power === "running" || power === "paused");
  const timeoutS = Number(timeout);
  const fault = shutDown
    ? numberFault(
        limitsOf("EvacuateHost", "timeout_s"),
        Number.isInteger(timeoutS) ? timeoutS : undefined,
        SECOND,
      )
    : undefined;
  const bandwidth = bytesOf(rate);
  const rateLimits = limitsOf("EvacuateHost", "bytes_per_second");
  const rateFault = bandwidth === undefined ? undefined : sizeFault(rateLimits, rate);
  const isValid = fault === undefined && rateFault === undefined;
  const wish = {
    shutDown,
    timeoutS: shutDown ? timeoutS : undefined,
    withVolumes,
    bandwidth,
  };
  return (
    <ActionDialog
      title={`Evacuate ${host.name}`}
      submit="Evacuate"
      actions={isValid ? [evacuate(host, wish)] : []}
      onClose={onClose}
    >
      <p>
        It is in maintenance from then on. {plural(vms.length, "VM")}{" "}
        {vms.length === 1 ? "moves" : "move"} to other hosts, four at a time;{" "}
        {count(running.length)} of them {running.length === 1 ? "runs" : "run"} and{" "}
        {running.length === 1 ? "moves" : "move"} while running. What stays is in the task, with the
        reasons.
      </p>
      <CheckField
        label="Shut down VMs that cannot move while they run"
        hint="They are moved and started again. Otherwise they stay."
        isChecked={shutDown}
        onChange={setShutDown}
      />
      {shutDown ? (
        <TextField
          label="Time for each guest to shut down, in seconds"
          hint="It is powered off then: what it has not written is lost."
          inputMode="numeric"
          value={timeout}
          onChange={setTimeout}
          fault={fault}
        />
      ) : null}
      <CheckField
        label="Take volumes along where no other host reaches them"
        hint="Each VM's volumes are copied to the datastore with the most space. Otherwise such VMs stay."
        isChecked={withVolumes}
        onChange={setWithVolumes}
      />
      <SizeField
        label="At most, a second, of each VM"
        size={rate}
        limits={rateLimits}
        onChange={setRate}
        hint="Without it, what the network gives."
        isOptional
      />
    </ActionDialog>
  );
}

function FenceDialog({ host, vms, onClose }: Props & { onClose: () => void }) {
  const answers = host.state === "connected";
  const [isForced, setForced] = useState(false);
  return (
    <ActionDialog
      title={`Declare ${host.name} lost`}
      submit="Declare lost"
      actions={answers && !isForced ? [] : [fence(host, answers && isForced)]}
      confirm={host.name}
      onClose={onClose}
      loses={
        <>
          <p>
            It is shut out from its Ceph clusters, so that it can write to none of its disks there,
            and its VMs there are started on other hosts. What guests on it had not written is lost.
          </p>
          <p>
            VMs on directories of this machine stay with it ({plural(vms.length, "VM")} placed
            there): they come back with the machine, or not at all.
          </p>
        </>
      }
    >
      {answers ? (
        <CheckField
          label="Even though it answers"
          hint="VMs that run there lose their disks while their guests work."
          isChecked={isForced}
          onChange={setForced}
        />
      ) : null}
    </ActionDialog>
  );
}

function AdmitDialog({ host, onClose }: { host: Host; onClose: () => void }) {
  const [hasStarted, setStarted] = useState(false);
  return (
    <ActionDialog
      title={`Admit ${host.name}`}
      submit="Admit"
      actions={[admit(host, hasStarted)]}
      onClose={onClose}
    >
      <p>
        It may use its Ceph clusters again. The machine must have started again since it was
        declared lost: otherwise a guest of before could write to a disk that another host has now.
      </p>
      <CheckField
        label="I have seen that the machine has started again"
        hint="Counts only if the control plane does not know its last start before that."
        isChecked={hasStarted}
        onChange={setStarted}
      />
    </ActionDialog>
  );
}
