import { addresses } from "../../app/addresses";
import { useEstate } from "../../live/useLive";
import { useRefusal } from "../../session/useMe";
import { useTitle } from "../../shell/useTitle";
import { ButtonLink } from "../../ui/Button";
import { ProblemNote } from "../../ui/Notes";
import { ScreenHead } from "../../ui/Panel";
import { AlarmsPanel } from "./AlarmsPanel";
import { CapacityPanel } from "./CapacityPanel";
import { HostsPanel } from "./HostsPanel";
import { KeyProvidersPanel } from "./KeyProvidersPanel";
import { TasksPanel } from "./TasksPanel";
import { VmFigures } from "./VmFigures";

export default function Overview() {
  useTitle("Overview");
  const estate = useEstate();
  const refusal = useRefusal();
  const maySeeHosts = refusal("host_list") === undefined;
  return (
    <>
      <ScreenHead
        title="Overview"
        actions={
          refusal("vm_create") === undefined ? (
            <ButtonLink to={addresses.newVm} look="primary" icon="plus">
              Create a VM
            </ButtonLink>
          ) : null
        }
      />
      {estate.problem === undefined ? null : <ProblemNote problem={estate.problem} />}
      <VmFigures estate={estate} />
      <div className="halves">
        <div className="stack">
          <AlarmsPanel />
          <TasksPanel />
        </div>
        <div className="stack">
          <CapacityPanel withHosts={maySeeHosts} />
          <KeyProvidersPanel />
          {maySeeHosts ? <HostsPanel /> : null}
        </div>
      </div>
    </>
  );
}
