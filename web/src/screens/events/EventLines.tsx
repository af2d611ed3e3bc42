import { Link } from "wouter";
import type { StrongroomEvent } from "../../api/types";
import { addresses, addressOfObject } from "../../app/addresses";
import { sentence } from "../../lib/words";
import { Prose } from "../../ui/Prose";
import { When } from "../../ui/When";

/** Events, the newest first. */
export function EventLines({ events }: { events: readonly StrongroomEvent[] }) {
  return (
    <ul className="lines">
      {[...events].reverse().map((event) => (
        <li key={event.id}>
          <EventLine event={event} />
        </li>
      ))}
    </ul>
  );
}

function EventLine({
  event: { kind, object, message, task, at_unix_ms },
}: {
  event: StrongroomEvent;
}) {
  const to = addressOfObject(object);
  return (
    <div className="line">
      <div className="line-words">
        <span>
          <Prose text={sentence(message)} />
        </span>
        <span className="small soft">
          <code>{kind}</code>{" "}
          {to === undefined ? object.name : <Link href={to}>{object.name}</Link>}
          {typeof task === "string" ? (
            <>
              {" \u00b7 "}
              <Link href={addresses.task(task)}>task</Link>
            </>
          ) : null}
        </span>
      </div>
      <span className="line-end">
        <When ms={at_unix_ms} />
      </span>
    </div>
  );
}
