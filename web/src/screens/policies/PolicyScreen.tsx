import { useState } from "react";
import { Link, useLocation, useParams } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { applyPolicy, deletePolicy } from "../../actions/policy";
import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { count, plural } from "../../lib/units";
import { sentence } from "../../lib/words";
import { useMay } from "../../session/useMay";
import { Nowhere } from "../../shell/Nowhere";
import { useTitle } from "../../shell/useTitle";
import { Button } from "../../ui/Button";
import { MayButton } from "../../ui/MayButton";
import { Menu } from "../../ui/Menu";
import { Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Facts, Panel, ScreenHead } from "../../ui/Panel";
import { Prose } from "../../ui/Prose";
import { Mark } from "../../ui/Status";
import { Table, type Column } from "../../ui/Table";
import { RunningTask } from "../vm/RunningTask";
import { PolicyDialog } from "./PolicyDialog";
import { rulesInWords } from "./rules";

type Policy = Schemas["Policy"];

const STEP = 50;

export default function PolicyScreen() {
  const { policy: name = "", tab = "" } = useParams<{ policy: string; tab?: string }>();
  const [, go] = useLocation();
  const asked = useAsk("policy_show", { path: { policy: name } });
  const policy = asked.data;
  useTitle(policy?.name ?? name);
  if (asked.error?.code === "not_found" || (tab !== "" && tab !== "change")) return <Nowhere />;
  if (policy === undefined) {
    return asked.error === null ? (
      <Waiting lines={8} label={`Loading ${name}`} />
    ) : (
      <ProblemNote problem={asked.error} retry={() => void asked.refetch()} />
    );
  }
  const deviating = policy.deviating ?? [];
  return (
    <>
      <ScreenHead
        title={policy.name}
        above={<Link href={addresses.policies}>Policies</Link>}
        beside={
          deviating.length === 0 ? (
            <Mark tone="good" shape="tick">
              Kept by all
            </Mark>
          ) : (
            <Mark tone="warning" shape="triangle">
              {plural(deviating.length, "VM")} off its rules
            </Mark>
          )
        }
        actions={<PolicyActions policy={policy} />}
      />
      <Tasks policy={policy} />
      <div className="halves">
        <Panel title="Its rules">
          <Facts
            facts={rulesInWords(policy.rules).map(({ about, says }) => ({
              label: about,
              value: says,
            }))}
          />
        </Panel>
        <Panel title="Policy">
          <Facts
            facts={[
              { label: "Purpose", value: policy.description === "" ? "none" : policy.description },
              {
                label: "VMs",
                value: (
                  <Link href={`${addresses.vms}?policy=${encodeURIComponent(policy.name)}`}>
                    {plural(policy.vms, "VM")} under it
                  </Link>
                ),
              },
              { label: "Id", value: <code>{policy.id}</code> },
            ]}
          />
        </Panel>
      </div>
      {deviating.length === 0 ? null : <Deviating policy={policy} names={deviating} />}
      {tab === "change" ? (
        <PolicyDialog policy={policy} onClose={() => go(addresses.policy(policy.name))} />
      ) : null}
    </>
  );
}

function Tasks({ policy }: { policy: Policy }) {
  const { data } = useAsk("task_list", { query: { state: "running", limit: 200 } }, { keep: true });
  const own = (data?.items ?? []).filter(
    ({ object }) => object.kind === "policy" && object.id === policy.id,
  );
  return own.map(({ id }) => <RunningTask key={id} task={id} />);
}

/** The VMs that do not keep the rules, and what ends that. */
function Deviating({ policy, names }: { policy: Policy; names: readonly string[] }) {
  const [isAsked, ask] = useState(false);
  const [shown, show] = useState(STEP);
  return (
    <Panel
      title={names.length === 1 ? "1 VM deviates" : `${count(names.length)} VMs deviate`}
      isFlush
      aside={
        <MayButton operation="policy_apply" look="primary" onPress={() => ask(true)}>
          Apply the policy&hellip;
        </MayButton>
      }
    >
      <Table
        label="VMs that deviate"
        columns={COLUMNS}
        rows={names.slice(0, shown)}
        keyOf={(name) => name}
      />
      {names.length > shown ? (
        <p className="panel-line">
          <Button onPress={() => show(shown + STEP)}>
            Show {count(Math.min(STEP, names.length - shown))} more
          </Button>
        </p>
      ) : null}
      {isAsked ? (
        <ActionDialog
          title={`Apply ${policy.name}`}
          submit="Apply"
          actions={[applyPolicy(policy.name)]}
          onClose={() => ask(false)}
        >
          <p>
            Each of the {plural(names.length, "VM")} gets ordinary tasks that end what deviates,
            four VMs at a time: disks are encrypted, keys move, snapshots are scheduled. What no
            request can end is in the task, with the reasons.
          </p>
          <Note>
            Encrypting a disk rewrites all of it; it takes as long as its content is large.
          </Note>
        </ActionDialog>
      ) : null}
    </Panel>
  );
}

const COLUMNS: readonly Column<string>[] = [
  { name: "VM", cell: (name) => <Link href={addresses.vm(name)}>{name}</Link> },
  { name: "What deviates, and what ends it", cell: (name) => <Deviations name={name} /> },
];

function Deviations({ name }: { name: string }) {
  const { data, error } = useAsk("vm_show", { path: { vm: name } });
  if (error !== null) return <ProblemNote problem={error} />;
  if (data === undefined) return <Waiting lines={1} />;
  return (
    <ul className="stack-small">
      {(data.deviations ?? []).map(({ rule, disk, message, next_step }) => (
        <li key={`${rule} ${disk ?? ""}`}>
          <Prose text={sentence(message)} />
          <br />
          <span className="soft">
            <Prose text={sentence(next_step)} />
          </span>
        </li>
      ))}
    </ul>
  );
}

function PolicyActions({ policy }: { policy: Policy }) {
  const may = useMay();
  const [, go] = useLocation();
  const [isDeleting, begin] = useState(false);
  return (
    <>
      <Menu
        label={`Actions for ${policy.name}`}
        choices={[
          may("policy_set", {
            id: "change",
            label: "Change its rules\u2026",
            choose: () => go(addresses.policy(policy.name, "change")),
          }),
          may("policy_delete", {
            id: "delete",
            label: "Delete\u2026",
            isDangerous: true,
            ...(policy.vms > 0 ? { refusal: `${plural(policy.vms, "VM")} under it.` } : {}),
            choose: () => begin(true),
          }),
        ]}
      >
        Actions
      </Menu>
      {isDeleting ? (
        <ActionDialog
          title={`Delete ${policy.name}`}
          submit="Delete"
          actions={[deletePolicy(policy.name)]}
          confirm={policy.name}
          onClose={() => begin(false)}
          onDone={() => go(addresses.policies)}
          loses={<p>Its rules. No VM is under it.</p>}
        />
      ) : null}
    </>
  );
}
