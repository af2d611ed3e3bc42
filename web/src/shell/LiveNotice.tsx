import { useLiveState } from "../live/useLive";
import { moment } from "../lib/units";
import { Note } from "../ui/Notes";
import { Mark } from "../ui/Status";

/** Whether the page follows what happens, in a word. */
export function LiveMark() {
  const state = useLiveState();
  return (
    <span className="top-live small" role="status">
      {state.kind === "live" ? (
        <Mark tone="good" shape="disc">
          Live
        </Mark>
      ) : (
        <Mark tone={state.kind === "stale" ? "warning" : "off"} shape="half">
          {state.kind === "stale" ? "Stale" : "Connecting"}
        </Mark>
      )}
    </span>
  );
}

/** Says that what is shown may be out of date. */
export function LiveNotice() {
  const state = useLiveState();
  if (state.kind !== "stale") return null;
  return (
    <Note tone="warning" title={`Not up to date since ${moment(state.sinceMs)}`}>
      No events come from the control plane. What is shown here may have changed; the page tries
      again by itself.
    </Note>
  );
}
