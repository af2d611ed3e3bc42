import type { Snapshot } from "../../api/types";
import { bytes, moment } from "../../lib/units";
import { Button } from "../../ui/Button";
import { Menu } from "../../ui/Menu";
import { treeOf, type Row } from "./tree";

export type SnapshotVerb = "revert" | "clone" | "delete";

const ROW = 56;
const LANE = 22;
const LEFT = 24;
const BEND = 10;

const x = ({ lane }: Row) => LEFT + lane * LANE;
const y = (row: number) => row * ROW + ROW / 2;

interface Props {
  snapshots: readonly Snapshot[];
  whyNot: Readonly<Record<SnapshotVerb, string | undefined>>;
  onAsk: (what: SnapshotVerb, snapshot: Snapshot) => void;
}

/** The snapshots beside a drawing of what is based on what, down to the present content. */
export function SnapshotTree({ snapshots, whyNot, onAsk }: Props) {
  const rows = treeOf(snapshots);
  const width = LEFT * 2 + Math.max(...rows.map(({ lane }) => lane)) * LANE;
  return (
    <div className="tree">
      <svg
        className="tree-drawing"
        width={width}
        height={rows.length * ROW}
        aria-hidden="true"
        focusable="false"
      >
        {rows.map((row, index) => {
          const parent = row.parent === undefined ? undefined : rows[row.parent];
          return parent === undefined || row.parent === undefined ? null : (
            <path key={index} className="tree-edge" d={edge(parent, row.parent, row, index)} />
          );
        })}
        {rows.map((row, index) => (
          <circle
            key={index}
            className={row.snapshot === undefined ? "tree-now" : "tree-node"}
            cx={x(row)}
            cy={y(index)}
            r={row.snapshot === undefined ? 6 : 5}
          />
        ))}
      </svg>
      <ol className="tree-rows">
        {rows.map(({ snapshot, parent }) => (
          <li key={snapshot?.id ?? "now"} className="tree-row">
            {snapshot === undefined ? (
              <strong>Present content</strong>
            ) : (
              <SnapshotRow
                snapshot={snapshot}
                base={parent === undefined ? undefined : rows[parent]?.snapshot?.name}
                whyNot={whyNot}
                onAsk={(what) => onAsk(what, snapshot)}
              />
            )}
          </li>
        ))}
      </ol>
    </div>
  );
}

/** Down on the parent's lane, and round a bend to another one. */
function edge(parent: Row, from: number, row: Row, to: number): string {
  const [px, py, cx, cy] = [x(parent), y(from), x(row), y(to)];
  return px === cx
    ? `M${px} ${py}V${cy}`
    : `M${px} ${py}V${cy - BEND}Q${px} ${cy} ${px + BEND} ${cy}H${cx}`;
}

interface RowProps {
  snapshot: Snapshot;
  base: string | undefined;
  whyNot: Props["whyNot"];
  onAsk: (what: SnapshotVerb) => void;
}

function SnapshotRow({ snapshot, base, whyNot, onAsk }: RowProps) {
  const { name, at_unix_seconds, memory, quiesced, group, is_current } = snapshot;
  const marks = [
    typeof memory?.bytes === "number" ? `with ${bytes(memory.bytes)} of memory` : "",
    quiesced === true ? "file systems frozen" : "",
    group === undefined || group === null ? "" : `with ${group.with.join(", ")}`,
  ].filter((mark) => mark !== "");
  return (
    <>
      <div className="tree-words">
        <span className="cut">
          <strong>{name}</strong>
          {is_current ? (
            <span className="unseen">, which the present content is based on</span>
          ) : null}
        </span>
        <span className="small soft cut">
          {moment(at_unix_seconds * 1000)}
          {base === undefined ? "" : <span className="unseen">, based on {base}</span>}
          {marks.length === 0 ? "" : `, ${marks.join(", ")}`}
        </span>
      </div>
      <div className="buttons">
        <span className="tree-revert">
          <Button
            look="quiet"
            why={whyNot.revert}
            aria-label={`Revert\u2026 to ${name}`}
            onPress={() => onAsk("revert")}
          >
            Revert&hellip;
          </Button>
        </span>
        <Menu
          label={`More for snapshot ${name}`}
          icon="more"
          look="quiet"
          choices={[
            {
              id: "revert",
              label: "Revert to it\u2026",
              refusal: whyNot.revert,
              choose: () => onAsk("revert"),
            },
            {
              id: "clone",
              label: "Clone it\u2026",
              refusal: whyNot.clone,
              choose: () => onAsk("clone"),
            },
            {
              id: "delete",
              label: "Delete\u2026",
              isDangerous: true,
              refusal: whyNot.delete,
              choose: () => onAsk("delete"),
            },
          ]}
        />
      </div>
    </>
  );
}
