import { useMemo, useState } from "react";
import { Link, useSearchParams } from "wouter";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { bytes, count, plural } from "../../lib/units";
import { useTitle } from "../../shell/useTitle";
import { Button } from "../../ui/Button";
import { SelectField, TextField } from "../../ui/Field";
import { MayButton } from "../../ui/MayButton";
import { Empty, ProblemNote, Waiting } from "../../ui/Notes";
import { Panel, ScreenHead } from "../../ui/Panel";
import { SealMark } from "../../ui/Status";
import { Table, type Column } from "../../ui/Table";
import { CreateDiskDialog } from "./dialogs";
import { filtered, filterOf, nameOf, queryOf, sumsOf, takenBy, type DiskFilter } from "./filter";
import { useDisks } from "./useDisks";

type Volume = Schemas["Volume"];

/** As many rows are shown at first, and more of them when somebody asks. */
const STEP = 100;

/** All disks of the site. */
export default function Disks() {
  useTitle("Disks");
  const asked = useDisks();
  const [query, setQuery] = useSearchParams();
  const [shown, show] = useState(STEP);
  const [isCreating, create] = useState(false);
  const filter = useMemo(() => filterOf(query), [query]);
  const disks = asked.data;
  const found = useMemo(() => filtered(disks ?? [], filter), [disks, filter]);
  const { size, taken, unread } = sumsOf(found);
  return (
    <>
      <ScreenHead
        title="Disks"
        actions={
          <MayButton
            operation="volume_create"
            look="primary"
            icon="plus"
            onPress={() => create(true)}
          >
            Create a disk&hellip;
          </MayButton>
        }
      />
      <Filters
        filter={filter}
        disks={disks ?? []}
        onChange={(next) => setQuery(queryOf(next), { replace: true })}
      />
      {asked.error === null ? null : (
        <ProblemNote problem={asked.error} retry={() => void asked.refetch()} />
      )}
      <Panel
        title={disks === undefined ? "Disks" : `${count(found.length)} of ${count(disks.length)}`}
        isFlush
        aside={
          found.length === 0 ? null : (
            <span className="soft small number">
              {bytes(size)}, of which {bytes(taken)} are taken
              {unread === 0 ? "" : `; ${plural(unread, "disk")} not read yet`}
            </span>
          )
        }
      >
        {asked.isPending ? <Waiting lines={8} /> : null}
        {disks !== undefined && found.length === 0 ? (
          <Empty
            icon="disk"
            title={disks.length === 0 ? "There is no disk yet" : "No disk matches"}
          >
            {disks.length === 0
              ? "Each VM has disks. A disk that no VM has is made here, and given to a VM and taken back."
              : "Leave out a part of the filter."}
          </Empty>
        ) : null}
        {found.length === 0 ? null : (
          <Table label="Disks" columns={COLUMNS} rows={found.slice(0, shown)} keyOf={idOf} />
        )}
        {found.length > shown ? (
          <p className="panel-line">
            <Button onPress={() => show(shown + STEP)}>
              Show {count(Math.min(STEP, found.length - shown))} more
            </Button>
          </p>
        ) : null}
      </Panel>
      {isCreating ? <CreateDiskDialog onClose={() => create(false)} /> : null}
    </>
  );
}

const idOf = ({ id }: Volume) => id;

const COLUMNS: readonly Column<Volume>[] = [
  {
    name: "Disk",
    cell: (disk) => <Link href={addresses.disk(disk.id)}>{nameOf(disk)}</Link>,
  },
  {
    name: "VM",
    cell: ({ vm_name: vm }) =>
      typeof vm === "string" ? (
        <Link href={addresses.vm(vm, "disks")}>{vm}</Link>
      ) : (
        <span className="soft">none</span>
      ),
  },
  {
    name: "Protection",
    cell: ({ encrypted }) => <SealMark seal={encrypted ? "sealed" : "clear"} />,
  },
  { name: "Size", isNumber: true, cell: ({ size_bytes }) => bytes(size_bytes) },
  {
    name: "Takes",
    isNumber: true,
    cell: (disk) => {
      const taken = takenBy(disk);
      return taken === undefined ? <span className="soft">not read yet</span> : bytes(taken);
    },
  },
  {
    name: "Space",
    isMinor: true,
    cell: ({ thick }) => (thick ? "all at once" : "when written"),
  },
  {
    name: "Datastore",
    cell: ({ datastore }) => <Link href={addresses.datastore(datastore)}>{datastore}</Link>,
  },
];

function Filters({
  filter,
  disks,
  onChange,
}: {
  filter: DiskFilter;
  disks: readonly Volume[];
  onChange: (filter: DiskFilter) => void;
}) {
  const stores = [...new Set(disks.map(({ datastore }) => datastore))].sort();
  const set = (changes: Partial<DiskFilter>) => onChange({ ...filter, ...changes });
  return (
    <div className="filter-fields" role="search" aria-label="Disks">
      <TextField
        label="Name"
        placeholder="VM or disk"
        value={filter.text}
        onChange={(text) => set({ text })}
      />
      <SelectField
        label="Protection"
        value={filter.seal}
        onChange={(seal) => set({ seal })}
        options={[
          { value: "", label: "All" },
          { value: "sealed", label: "Sealed" },
          { value: "clear", label: "Clear" },
        ]}
      />
      <SelectField
        label="Owner"
        value={filter.owner}
        onChange={(owner) => set({ owner })}
        options={[
          { value: "", label: "All" },
          { value: "vm", label: "A VM" },
          { value: "none", label: "No VM" },
        ]}
      />
      <SelectField
        label="Datastore"
        value={filter.datastore}
        onChange={(datastore) => set({ datastore })}
        options={[
          { value: "", label: "All" },
          ...stores.map((store) => ({ value: store, label: store })),
        ]}
      />
      <SelectField
        label="Order"
        value={filter.sort}
        onChange={(sort) => set({ sort })}
        options={[
          { value: "", label: "By VM" },
          { value: "size", label: "Largest first" },
          { value: "taken", label: "What takes most first" },
        ]}
      />
    </div>
  );
}
