import { Link } from "wouter";
import type { Alarm } from "../../api/types";
import { addressOfObject } from "../../app/addresses";
import { sentence } from "../../lib/words";
import { Prose } from "../../ui/Prose";
import { SeverityMark } from "../../ui/Status";
import { When } from "../../ui/When";

/** Alarms, critical ones first. */
export function AlarmLines({ alarms, max = Infinity }: { alarms: readonly Alarm[]; max?: number }) {
  const rank = ({ severity }: Alarm) => (severity === "critical" ? 0 : 1);
  const sorted = [...alarms].sort(
    (one, other) => rank(one) - rank(other) || other.since_unix_ms - one.since_unix_ms,
  );
  return (
    <ul className="lines">
      {sorted.slice(0, max).map((alarm) => (
        <li key={`${alarm.kind} ${alarm.object.kind} ${alarm.object.name}`}>
          <AlarmLine alarm={alarm} />
        </li>
      ))}
    </ul>
  );
}

function AlarmLine({
  alarm: { severity, object, message, next_step, since_unix_ms },
}: {
  alarm: Alarm;
}) {
  const to = addressOfObject(object);
  return (
    <div className="line">
      <div className="line-words">
        <span className="buttons">
          <SeverityMark severity={severity} />
          {to === undefined ? (
            <span className="soft">{object.name}</span>
          ) : (
            <Link href={to}>{object.name}</Link>
          )}
        </span>
        <span>
          <Prose text={sentence(message)} />
        </span>
        <span className="soft">
          <Prose text={sentence(next_step)} />
        </span>
      </div>
      <span className="line-end">
        <When ms={since_unix_ms} />
      </span>
    </div>
  );
}
