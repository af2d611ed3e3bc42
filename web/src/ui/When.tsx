import { Store, useStore } from "../lib/store";
import { distance, moment } from "../lib/units";

const EVERY_MS = 10_000;
const clock = new Store(Date.now());
setInterval(() => {
  if (clock.hasListeners) clock.become(Date.now());
}, EVERY_MS);

const ticking = {
  state: clock.state,
  subscribe: (listener: () => void) => {
    // Nobody may have looked at it for long.
    if (!clock.hasListeners) clock.become(Date.now());
    return clock.subscribe(listener);
  },
};

/** The time, some seconds ago at most. */
export function useNow(): number {
  return useStore(ticking);
}

/** A moment, as far away as it is. */
export function When({ ms }: { ms: number }) {
  const now = useNow();
  return (
    <time dateTime={new Date(ms).toISOString()} title={moment(ms)}>
      {distance(ms, now)}
    </time>
  );
}
