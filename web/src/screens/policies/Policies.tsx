import { Link, useLocation, useRoute } from "wouter";
import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { count, plural } from "../../lib/units";
import { useTitle } from "../../shell/useTitle";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Empty } from "../../ui/Notes";
import { Panel, ScreenHead } from "../../ui/Panel";
import { Mark } from "../../ui/Status";
import { Table, type Column } from "../../ui/Table";
import { PolicyDialog } from "./PolicyDialog";

export default function Policies() {
  const [isCreating] = useRoute(addresses.newPolicy);
  useTitle(isCreating ? "Create a policy" : "Policies");
  const [, go] = useLocation();
  const asked = useAsk("policy_list", { query: { limit: 1000 } });
  return (
    <>
      <ScreenHead
        title="Policies"
        actions={
          <MayButton
            operation="policy_create"
            look="primary"
            icon="plus"
            onPress={() => go(addresses.newPolicy)}
          >
            Create a policy&hellip;
          </MayButton>
        }
      />
      <Panel
        title={
          asked.data === undefined
            ? "Rules for VMs"
            : plural(asked.data.total, "policy", "policies")
        }
        isFlush
      >
        <Listed
          asked={asked}
          empty={
            <Empty icon="policy" title="There is no policy yet">
              A policy says what its VMs must have: encryption, a key provider, snapshots, limits.
              No request is accepted with which a VM would deviate from it.
            </Empty>
          }
        >
          {(policies) => (
            <Table label="Policies" columns={COLUMNS} rows={policies} keyOf={({ id }) => id} />
          )}
        </Listed>
      </Panel>
      {isCreating ? <PolicyDialog onClose={() => go(addresses.policies)} /> : null}
    </>
  );
}

const COLUMNS: readonly Column<Schemas["Policy"]>[] = [
  { name: "Name", cell: ({ name }) => <Link href={addresses.policy(name)}>{name}</Link> },
  { name: "Purpose", cell: ({ description }) => description },
  { name: "VMs", isNumber: true, cell: ({ vms }) => count(vms) },
  {
    name: "Kept",
    cell: ({ deviating = [] }) =>
      deviating.length === 0 ? (
        <Mark tone="good" shape="tick">
          By all
        </Mark>
      ) : (
        <Mark tone="warning" shape="triangle">
          {`${plural(deviating.length, "VM")} deviate${deviating.length === 1 ? "s" : ""}`}
        </Mark>
      ),
  },
];
