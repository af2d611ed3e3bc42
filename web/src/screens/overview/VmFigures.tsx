import { Link } from "wouter";
import type { PowerState } from "../../api/types";
import { addresses } from "../../app/addresses";
import type { Estate } from "../../live/estate";
import { count } from "../../lib/units";
import { Empty } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { Power, SealMark, sealOf, type Seal } from "../../ui/Status";
import { ButtonLink } from "../../ui/Button";

const SEALS: readonly Seal[] = ["sealed", "partly", "clear"];
const POWERS: readonly PowerState[] = [
  "running",
  "key_unavailable",
  "crashed",
  "unknown",
  "starting",
  "stopping",
  "paused",
  "suspended",
  "stopped",
];

function tally<Kind extends string>(kinds: readonly Kind[]): ReadonlyMap<Kind, number> {
  const counts = new Map<Kind, number>();
  for (const kind of kinds) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return counts;
}

/** How many VMs there are, by what protects them and by what they do. */
export function VmFigures({ estate: { vms, total, isComplete } }: { estate: Estate }) {
  if (isComplete && total === 0) {
    return (
      <Panel title="VMs">
        <Empty
          icon="vm"
          title="There is no VM yet"
          action={
            <ButtonLink to={addresses.newVm} look="primary" icon="plus">
              Create a VM
            </ButtonLink>
          }
        >
          A VM&rsquo;s disks are sealed under a key of its own, which the key provider keeps and
          only its host gets.
        </Empty>
      </Panel>
    );
  }
  const seals = tally(vms.map(sealOf));
  const powers = tally(vms.map(({ power }) => power));
  const aside = isComplete
    ? `${count(total)} in all`
    : `${count(vms.length)} of ${count(total)} read`;
  return (
    <Panel title="VMs" aside={<span className="soft number">{aside}</span>}>
      <div className="stack">
        <div className="share" aria-hidden="true">
          {SEALS.map((seal) => (
            <span
              key={seal}
              className={`share-${seal}`}
              style={{ flexGrow: seals.get(seal) ?? 0 }}
            />
          ))}
        </div>
        <ul className="figures">
          {SEALS.map((seal) => (
            <li key={seal}>
              <Link href={`${addresses.vms}?seal=${seal}`} className="figure">
                <span className="figure-number number">{count(seals.get(seal) ?? 0)}</span>
                <SealMark seal={seal} />
              </Link>
            </li>
          ))}
          {POWERS.filter((power) => powers.has(power)).map((power) => (
            <li key={power}>
              <Link href={`${addresses.vms}?power=${power}`} className="figure">
                <span className="figure-number number">{count(powers.get(power) ?? 0)}</span>
                <Power power={power} />
              </Link>
            </li>
          ))}
        </ul>
      </div>
    </Panel>
  );
}
