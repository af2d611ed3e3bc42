import { useVirtualizer } from "@tanstack/react-virtual";
import { useId, useMemo, useRef, useState, type KeyboardEvent, type MouseEvent } from "react";
import { useLocation } from "wouter";
import type { VmSummary } from "../../api/types";
import { addresses } from "../../app/addresses";
import type { Filter } from "./filter";
import { NOTHING, toggled, withRange, type Selection } from "./selection";
import { COLUMNS, VmRow } from "./VmRow";
import { useRowHeight } from "./useRowHeight";

const BEYOND = 6;
/** Rows that leave the sight become those that come into it; more are never in sight at once. */
const POOL = 256;

interface Props {
  vms: readonly VmSummary[];
  filter: Filter;
  onSort: (sort: string) => void;
  selection: Selection;
  onSelect: (selection: Selection) => void;
}

/** Any number of VMs: only the rows in sight exist. The grid has the focus, and points to a row. */
export function VmGrid({ vms, filter, onSort, selection, onSelect }: Props) {
  const id = useId();
  const [, go] = useLocation();
  const scroller = useRef<HTMLDivElement>(null);
  const rowHeight = useRowHeight();
  const [at, setAt] = useState(0);
  const [from, setFrom] = useState(0);
  const active = Math.min(at, vms.length - 1);
  // Its answers are read in this render alone, so nothing stale is kept.
  // eslint-disable-next-line react-hooks/incompatible-library
  const rows = useVirtualizer({
    count: vms.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => rowHeight,
    overscan: BEYOND,
    useFlushSync: false,
  });

  const moveTo = (row: number) => {
    const next = Math.max(0, Math.min(vms.length - 1, row));
    setAt(next);
    rows.scrollToIndex(next);
  };
  const toggle = (row: number, isRange: boolean) => {
    const vm = vms[row];
    if (vm === undefined) return;
    onSelect(
      isRange
        ? withRange(
            selection,
            vms.map((each) => each.id),
            from,
            row,
          )
        : toggled(selection, vm.id),
    );
    setFrom(row);
    setAt(row);
  };
  const pressed = (event: KeyboardEvent) => {
    const page = Math.max(
      1,
      Math.floor((scroller.current?.clientHeight ?? rowHeight) / rowHeight) - 1,
    );
    const steps: Readonly<Record<string, number>> = {
      ArrowDown: active + 1,
      ArrowUp: active - 1,
      PageDown: active + page,
      PageUp: active - page,
      Home: 0,
      End: vms.length - 1,
    };
    const step = steps[event.key];
    const vm = vms[active];
    if (step !== undefined) moveTo(step);
    else if (event.key === " ") toggle(active, event.shiftKey);
    else if (event.key === "Enter" && vm !== undefined) go(addresses.vm(vm.name));
    else if (event.key === "a" && (event.ctrlKey || event.metaKey))
      onSelect(new Set(vms.map((each) => each.id)));
    else if (event.key === "Escape") onSelect(NOTHING);
    else return;
    event.preventDefault();
  };
  // One listener for all rows: a link follows an address of this page without loading it anew.
  const followed = (event: MouseEvent<HTMLDivElement>) => {
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    if (link === null || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0)
      return;
    event.preventDefault();
    go(link.pathname);
  };
  // Not for each step of scrolling.
  const areAllSelected = useMemo(() => vms.every((vm) => selection.has(vm.id)), [vms, selection]);

  return (
    <div className="vm-frame">
      <div
        ref={scroller}
        className="vm-grid"
        role="grid"
        tabIndex={0}
        aria-label="VMs"
        aria-rowcount={vms.length + 1}
        aria-multiselectable="true"
        aria-activedescendant={`${id}-${active}`}
        onKeyDown={pressed}
        onClick={followed}
      >
        <div className="vm-row vm-head" role="row" aria-rowindex={1}>
          <span role="columnheader">
            <input
              type="checkbox"
              tabIndex={-1}
              aria-label="Select all that are shown"
              checked={areAllSelected}
              onChange={() =>
                onSelect(areAllSelected ? NOTHING : new Set(vms.map((each) => each.id)))
              }
            />
          </span>
          {COLUMNS.map((column) => (
            <SortHead key={column.label} {...column} sort={filter.sort} onSort={onSort} />
          ))}
        </div>
        <div className="vm-rows" role="rowgroup" style={{ height: rows.getTotalSize() }}>
          {rows.getVirtualItems().map(({ index, start }) => {
            const vm = vms[index];
            return vm === undefined ? null : (
              <VmRow
                key={index % POOL}
                id={`${id}-${index}`}
                vm={vm}
                index={index}
                start={start}
                isActive={index === active}
                isSelected={selection.has(vm.id)}
                onToggle={(event: MouseEvent) => toggle(index, event.shiftKey)}
              />
            );
          })}
        </div>
      </div>
    </div>
  );
}

function SortHead({
  label,
  column,
  order,
  sort,
  onSort,
}: (typeof COLUMNS)[number] & { sort: string; onSort: (sort: string) => void }) {
  const isUp = sort === order;
  const isDown = sort === `-${order}`;
  const sorted = isUp ? "ascending" : isDown ? "descending" : "none";
  return (
    <span role="columnheader" className={`vm-cell-${column}`} aria-sort={sorted}>
      <button
        type="button"
        className="vm-sort"
        tabIndex={-1}
        onClick={() => onSort(isUp ? `-${order}` : order)}
      >
        {label}
        <span aria-hidden="true">{isUp ? " \u2191" : isDown ? " \u2193" : ""}</span>
      </button>
    </span>
  );
}
