import { useDeferredValue, useMemo, useState } from "react";
import { useSearchParams } from "wouter";
import { addresses } from "../../app/addresses";
import { useEstate } from "../../live/useLive";
import { count, plural } from "../../lib/units";
import { useRefusal } from "../../session/useMe";
import { useTitle } from "../../shell/useTitle";
import { Button, ButtonLink } from "../../ui/Button";
import { Empty, ProblemNote, Waiting } from "../../ui/Notes";
import { ScreenHead } from "../../ui/Panel";
import { BulkBar } from "./BulkBar";
import { filtered, filterOf, isFiltering, queryOf, type Filter } from "./filter";
import { FilterBar } from "./FilterBar";
import { NOTHING } from "./selection";
import { VmGrid } from "./VmGrid";

export default function Vms() {
  useTitle("VMs");
  const estate = useEstate();
  const refusal = useRefusal();
  const [query, setQuery] = useSearchParams();
  const filter = useMemo(() => filterOf(query), [query]);
  const wanted = useDeferredValue(filter);
  const shown = useMemo(() => filtered(estate.vms, wanted), [estate.vms, wanted]);
  const [selection, select] = useState(NOTHING);
  const selected = useMemo(
    () => estate.vms.filter(({ id }) => selection.has(id)),
    [estate.vms, selection],
  );
  const setFilter = (next: Filter) => setQuery(queryOf(next), { replace: true });
  const create = (
    <ButtonLink to={addresses.newVm} look="primary" icon="plus">
      Create a VM
    </ButtonLink>
  );

  return (
    <div className="vms">
      <ScreenHead
        title="VMs"
        beside={
          <span className="soft number" role="status">
            {isFiltering(filter)
              ? `${count(shown.length)} of ${count(estate.total)}`
              : count(estate.total)}
            {estate.isComplete || estate.problem !== undefined
              ? ""
              : `, ${count(estate.vms.length)} read`}
          </span>
        }
        actions={refusal("vm_create") === undefined ? create : null}
      />
      {estate.problem === undefined ? null : <ProblemNote problem={estate.problem} />}
      <FilterBar vms={estate.vms} filter={filter} onChange={setFilter} />
      {selected.length === 0 ? null : <BulkBar vms={selected} onClear={() => select(NOTHING)} />}
      {shown.length > 0 ? (
        <VmGrid
          vms={shown}
          filter={filter}
          onSort={(sort) => setFilter({ ...filter, sort })}
          selection={selection}
          onSelect={select}
        />
      ) : null}
      {shown.length === 0 && !estate.isComplete && estate.problem === undefined ? (
        <Waiting lines={10} />
      ) : null}
      {shown.length === 0 && estate.isComplete && estate.total > 0 ? (
        <Empty
          icon="search"
          title="No VM matches"
          action={
            <Button onPress={() => setQuery({}, { replace: true })}>
              Show all {plural(estate.total, "VM")}
            </Button>
          }
        >
          Names and tags are searched for the text; the other choices have to match exactly.
        </Empty>
      ) : null}
      {estate.isComplete && estate.total === 0 ? (
        <Empty icon="vm" title="There is no VM yet" action={create}>
          Each VM is sealed under a key of its own unless you say otherwise.
        </Empty>
      ) : null}
    </div>
  );
}
