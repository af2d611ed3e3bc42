import { memo, type MouseEvent } from "react";
import type { VmSummary } from "../../api/types";
import { addresses } from "../../app/addresses";
import { bytes } from "../../lib/units";
import { Mark, Power, SealMark, sealOf } from "../../ui/Status";

/** A column's name for the styles, and the order that its head asks for. */
export const COLUMNS = [
  { label: "Name", column: "name", order: "name" },
  { label: "State", column: "power", order: "power" },
  { label: "Protection", column: "seal", order: "seal" },
  { label: "Host", column: "host", order: "host" },
  { label: "CPUs", column: "cpus", order: "cpus" },
  { label: "Memory", column: "memory", order: "memory" },
  { label: "Disks", column: "disks", order: "disks" },
  { label: "Policy", column: "policy", order: "policy" },
  { label: "Tags", column: "tags", order: "tags" },
] as const;

interface Props {
  id: string;
  vm: VmSummary;
  index: number;
  start: number;
  isActive: boolean;
  isSelected: boolean;
  onToggle: (event: MouseEvent) => void;
}

const same = (former: Props, next: Props) =>
  former.vm === next.vm &&
  former.index === next.index &&
  former.start === next.start &&
  former.isActive === next.isActive &&
  former.isSelected === next.isSelected;

export const VmRow = memo(function VmRow({
  id,
  vm,
  index,
  start,
  isActive,
  isSelected,
  onToggle,
}: Props) {
  return (
    <div
      id={id}
      role="row"
      aria-rowindex={index + 2}
      aria-selected={isSelected}
      className={isActive ? "vm-row vm-row-active" : "vm-row"}
      style={{ transform: `translateY(${start}px)` }}
    >
      <span role="gridcell" className="vm-cell-check">
        <input
          type="checkbox"
          tabIndex={-1}
          aria-label={`Select ${vm.name}`}
          checked={isSelected}
          readOnly
          onClick={onToggle}
        />
      </span>
      <span role="gridcell" className="vm-cell-name cut">
        <a href={addresses.vm(vm.name)} tabIndex={-1} className="vm-name">
          {vm.name}
        </a>
        {vm.template === true ? <span className="tag">template</span> : null}
      </span>
      <span role="gridcell" className="vm-cell-power cut">
        {typeof vm.task === "string" ? (
          <Mark tone="notice" shape="half">
            Task runs
          </Mark>
        ) : (
          <Power power={vm.power} />
        )}
      </span>
      <span role="gridcell" className="vm-cell-seal cut">
        <SealMark seal={sealOf(vm)} />
      </span>
      <span role="gridcell" className="vm-cell-host cut">
        {vm.host ?? ""}
      </span>
      <span role="gridcell" className="vm-cell-cpus number">
        {vm.cpus}
      </span>
      <span role="gridcell" className="vm-cell-memory number">
        {bytes(vm.memory_bytes)}
      </span>
      <span role="gridcell" className="vm-cell-disks number">
        {bytes(vm.disk_bytes)}
      </span>
      <span role="gridcell" className="vm-cell-policy cut">
        {vm.policy ?? ""}
      </span>
      <span role="gridcell" className="vm-cell-tags cut">
        {(vm.tags ?? []).join("  ")}
      </span>
    </div>
  );
}, same);
