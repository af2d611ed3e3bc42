import { useMemo, useState } from "react";
import { Link, useSearchParams } from "wouter";
import { useAsk } from "../../api/ask";
import type { VmSummary } from "../../api/types";
import { addresses } from "../../app/addresses";
import { useEstate } from "../../live/useLive";
import { count, duration, plural } from "../../lib/units";
import { useRefusal } from "../../session/useMe";
import { Button } from "../../ui/Button";
import { SelectField, TextField } from "../../ui/Field";
import { Empty, ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { Mark, type Tone } from "../../ui/Status";
import { Table, type Column } from "../../ui/Table";
import { When } from "../../ui/When";
import { CryptoperiodDialog } from "../vm/dialogs/CryptoperiodDialog";
import { RotateDialog } from "../vm/dialogs/RotateDialog";
import { valuesOf } from "../vms/filter";
import {
  filtered,
  filterOf,
  queryOf,
  standingOf,
  standingsOf,
  type KeyFilter,
  type Standing,
} from "./standing";

const MS = 1_000;
const STEP = 50;

const STANDINGS: Readonly<
  Record<Standing, readonly [Tone, "key" | "triangle" | "half" | "tick" | "lock-open", string]>
> = {
  unavailable: ["bad", "key", "Waits for its key"],
  overdue: ["warning", "triangle", "Renewal overdue"],
  expiring: ["warning", "half", "Ends soon"],
  fine: ["good", "tick", "Fine"],
  none: ["off", "lock-open", "Not encrypted"],
};

export function KeysOfVms() {
  const { vms, isComplete, problem } = useEstate();
  const alarms = useAsk("alarm_list", { query: { limit: 1000 } });
  const refusal = useRefusal();
  const [query, setQuery] = useSearchParams();
  const [shown, show] = useState(STEP);
  const [asked, ask] = useState<"rotate" | "period">();
  const filter = useMemo(() => filterOf(query), [query]);
  const standings = useMemo(() => standingsOf(alarms.data?.items ?? []), [alarms.data]);
  const found = useMemo(() => filtered(vms, standings, filter), [vms, standings, filter]);
  const changeable = found.filter(
    (vm) => vm.encrypted && refusal("vm_rotate_key", { vm }) === undefined,
  );
  const encrypted = found.filter((vm) => vm.encrypted);
  const why =
    changeable.length > 0
      ? undefined
      : encrypted[0] === undefined
        ? "None of these VMs is encrypted."
        : refusal("vm_rotate_key", { vm: encrypted[0] });
  const columns = useMemo(() => columnsOf(standings), [standings]);

  return (
    <>
      <Filters
        filter={filter}
        vms={vms}
        onChange={(next) => setQuery(queryOf(next), { replace: true })}
      />
      {problem === undefined ? null : <ProblemNote problem={problem} />}
      <Panel
        title={isComplete ? `${count(found.length)} of ${plural(vms.length, "VM")}` : "VMs"}
        isFlush
        aside={
          <div className="buttons">
            <Button why={why} onPress={() => ask("period")}>
              Set the period of {count(changeable.length)}&hellip;
            </Button>
            <Button
              icon="key"
              why={why}
              onPress={() => ask("rotate")}
              aria-description="Of all encrypted VMs that match and that you may re-encrypt"
            >
              Rotate {count(changeable.length)}&hellip;
            </Button>
          </div>
        }
      >
        {!isComplete && problem === undefined ? <Waiting lines={8} /> : null}
        {isComplete && found.length === 0 ? (
          <Empty icon="key" title={vms.length === 0 ? "There is no VM yet" : "No VM matches"}>
            {vms.length === 0
              ? "Each encrypted VM has a key of its own at its key provider."
              : "Leave out a part of the filter."}
          </Empty>
        ) : null}
        {found.length === 0 ? null : (
          <Table
            label="Keys of VMs"
            columns={columns}
            rows={found.slice(0, shown)}
            keyOf={({ id }) => id}
          />
        )}
        {found.length > shown ? (
          <p className="panel-line">
            <Button onPress={() => show(shown + STEP)}>
              Show {count(Math.min(STEP, found.length - shown))} more
            </Button>
          </p>
        ) : null}
      </Panel>
      {asked === "rotate" ? <RotateDialog vms={changeable} onClose={() => ask(undefined)} /> : null}
      {asked === "period" ? (
        <CryptoperiodDialog vms={changeable} onClose={() => ask(undefined)} />
      ) : null}
    </>
  );
}

function columnsOf(standings: ReadonlyMap<string, Standing>): readonly Column<VmSummary>[] {
  return [
    { name: "VM", cell: ({ name }) => <Link href={addresses.vm(name, "keys")}>{name}</Link> },
    {
      name: "Standing",
      cell: (vm) => {
        const [tone, shape, word] = STANDINGS[standingOf(vm, standings)];
        return (
          <Mark tone={tone} shape={shape}>
            {word}
          </Mark>
        );
      },
    },
    { name: "Key and provider", cell: (vm) => (vm.encrypted ? <Key vm={vm} /> : "") },
    { name: "Data keys of", cell: (vm) => (vm.encrypted ? <Since vm={vm} /> : "") },
    { name: "Renewed", cell: (vm) => (vm.encrypted ? <Period vm={vm} /> : "") },
  ];
}

/** The cells of a row ask for the same answer, which is asked for once. */
function useVm({ name }: VmSummary) {
  return useAsk("vm_show", { path: { vm: name } }).data;
}

function Key({ vm }: { vm: VmSummary }) {
  const key = useVm(vm)?.key;
  if (key === undefined || key === null) return <span className="soft">&hellip;</span>;
  return (
    <>
      <code>{key.key}</code> at {key.provider}
    </>
  );
}

function Since({ vm }: { vm: VmSummary }) {
  const since = useVm(vm)?.data_keys_unix_seconds;
  return typeof since === "number" ? (
    <When ms={since * MS} />
  ) : (
    <span className="soft">unknown</span>
  );
}

function Period({ vm }: { vm: VmSummary }) {
  const period = useVm(vm)?.cryptoperiod;
  if (period === undefined || period === null) return <span className="soft">on request</span>;
  return (
    <>
      every {duration(period.period.every_s)}, next <When ms={period.next_unix_seconds * MS} />
    </>
  );
}

function Filters({
  filter,
  vms,
  onChange,
}: {
  filter: KeyFilter;
  vms: readonly VmSummary[];
  onChange: (filter: KeyFilter) => void;
}) {
  const values = (of: (vm: VmSummary) => string | null | undefined) => [
    { value: "", label: "All" },
    ...valuesOf(vms, of)
      .filter((value) => value !== "-")
      .map((value) => ({ value, label: value })),
  ];
  return (
    <div className="filter-fields" role="search" aria-label="Keys of VMs">
      <TextField
        label="Name"
        value={filter.text}
        onChange={(text) => onChange({ ...filter, text })}
      />
      <SelectField
        label="Standing"
        value={filter.standing}
        onChange={(standing) => onChange({ ...filter, standing })}
        options={[
          { value: "", label: "All" },
          ...Object.entries(STANDINGS).map(([value, [, , label]]) => ({ value, label })),
        ]}
      />
      <SelectField
        label="Policy"
        value={filter.policy}
        onChange={(policy) => onChange({ ...filter, policy })}
        options={values(({ policy }) => policy)}
      />
      <SelectField
        label="Folder"
        value={filter.folder}
        onChange={(folder) => onChange({ ...filter, folder })}
        options={values(({ folder }) => folder)}
      />
      <SelectField
        label="Datastore"
        value={filter.datastore}
        onChange={(datastore) => onChange({ ...filter, datastore })}
        options={values(({ datastore }) => datastore)}
      />
    </div>
  );
}
