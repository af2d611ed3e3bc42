import { Link, useParams } from "wouter";
import { useAsk } from "../../api/ask";
import { addresses } from "../../app/addresses";
import { sentence } from "../../lib/words";
import { Nowhere } from "../../shell/Nowhere";
import { useTitle } from "../../shell/useTitle";
import { Note, ProblemNote, Waiting } from "../../ui/Notes";
import { ScreenHead } from "../../ui/Panel";
import { Prose } from "../../ui/Prose";
import { Power, SealMark, sealOf } from "../../ui/Status";
import { Tabs } from "../../ui/Tabs";
import type { Vm } from "../../api/types";
import { ActivityTab } from "./ActivityTab";
import { DisksTab } from "./DisksTab";
import { DumpsTab } from "./DumpsTab";
import { Moving } from "../migration/Moving";
import { KeysTab } from "./KeysTab";
import { NextStep } from "./NextStep";
import { PerformanceTab } from "./PerformanceTab";
import { RunningTask } from "./RunningTask";
import { SnapshotsTab } from "./SnapshotsTab";
import { SummaryTab } from "./SummaryTab";
import { VmActions } from "./VmActions";

const TABS = [
  { tab: "", label: "Summary", part: SummaryTab },
  { tab: "disks", label: "Disks", part: DisksTab },
  { tab: "snapshots", label: "Snapshots", part: SnapshotsTab },
  { tab: "keys", label: "Keys", part: KeysTab },
  { tab: "performance", label: "Performance", part: PerformanceTab },
  { tab: "dumps", label: "Dumps", part: DumpsTab },
  { tab: "activity", label: "Activity", part: ActivityTab },
] as const;

export default function VmScreen() {
  const { vm: name = "", tab = "" } = useParams<{ vm: string; tab?: string }>();
  const asked = useAsk("vm_show", { path: { vm: name } });
  const vm = asked.data;
  useTitle(vm?.name ?? name);
  if (asked.error?.code === "not_found") return <Nowhere />;
  if (vm === undefined) {
    return asked.error === null ? (
      <Waiting lines={8} label={`Loading ${name}`} />
    ) : (
      <ProblemNote problem={asked.error} retry={() => void asked.refetch()} />
    );
  }
  const part = TABS.find((each) => each.tab === tab);
  return part === undefined ? <Nowhere /> : <OneVm vm={vm} Part={part.part} />;
}

function OneVm({ vm, Part }: { vm: Vm; Part: (typeof TABS)[number]["part"] }) {
  const counts: Partial<Record<string, number>> = {
    disks: vm.disks.length,
    snapshots: vm.snapshots?.length ?? 0,
  };
  return (
    <>
      <ScreenHead
        title={vm.name}
        above={<Link href={addresses.vms}>VMs</Link>}
        beside={
          <>
            <Power power={vm.power} />
            <SealMark seal={sealOf(vm)} />
            {vm.template === true ? <span className="tag">template</span> : null}
          </>
        }
        actions={<VmActions vm={vm} />}
      />
      <Why vm={vm} />
      {typeof vm.task === "string" ? <RunningTask task={vm.task} said={vm.reason} /> : null}
      <Moving key={vm.id} vm={vm} />
      <Tabs
        label={`Parts of ${vm.name}`}
        tabs={TABS.map(({ tab, label }) => {
          const count = counts[tab];
          return {
            label,
            to: addresses.vm(vm.name, tab),
            ...(count === undefined ? {} : { count }),
          };
        })}
      />
      <Part vm={vm} />
    </>
  );
}

/** Why a VM is not as it is wanted. */
function Why({ vm }: { vm: Vm }) {
  const { reason, power, desired } = vm;
  if (typeof reason !== "string") return null;
  const isBad = power === "crashed" || power === "key_unavailable";
  const isOther = desired === "running" && power !== "running";
  return (
    <Note tone={isBad ? "bad" : isOther ? "warning" : "notice"}>
      <p>
        <Prose text={sentence(reason)} />
      </p>
      <NextStep vm={vm} />
      {isOther ? <p>It is wanted running, and is started as soon as that is possible.</p> : null}
    </Note>
  );
}
