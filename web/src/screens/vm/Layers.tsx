import type { Schemas, Snapshot } from "../../api/types";
import { bytes } from "../../lib/units";
import { When } from "../../ui/When";

/** What a disk takes on its datastore: its present content, and what each snapshot adds. */
export function Layers({
  space,
  snapshots,
}: {
  space: Schemas["VolumeSpace"];
  snapshots: readonly Snapshot[];
}) {
  const names = new Map(snapshots.map(({ id, name }) => [id, name]));
  const total = Math.max(1, space.committed_bytes);
  const layers = space.contents.map(({ snapshot, committed_bytes, unshared_bytes }) => ({
    key: snapshot ?? "present",
    name:
      typeof snapshot === "string"
        ? (names.get(snapshot) ?? "a snapshot that is gone")
        : "Present content",
    committed: committed_bytes,
    unshared: unshared_bytes,
  }));
  return (
    <div className="layers">
      <h3>
        Layers{" "}
        <span className="soft number">
          {bytes(space.committed_bytes)} of {bytes(space.logical_bytes)} written
        </span>
      </h3>
      <ul>
        {layers.map(({ key, name, committed, unshared }) => (
          <li key={key} className="layer">
            <span className="cut">{name}</span>
            <span className="number soft">{bytes(committed)}</span>
            <span className="layer-bar" aria-hidden="true">
              <span style={{ width: `${(committed / total) * 100}%` }} />
            </span>
            <span className="small soft">
              {key === "present" ? "" : `its deletion frees ${bytes(unshared)}`}
            </span>
          </li>
        ))}
      </ul>
      <p className="small soft">
        Read <When ms={space.read_unix_ms} />
      </p>
    </div>
  );
}
