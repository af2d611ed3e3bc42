import type { Schemas } from "../../api/types";
import { Mark } from "../../ui/Status";

export function HostMark({ host: { state, maintenance, fenced } }: { host: Schemas["Host"] }) {
  if (fenced !== undefined && fenced !== null) {
    return (
      <Mark tone="bad" shape="cross">
        Declared lost
      </Mark>
    );
  }
  if (state !== "connected") {
    return (
      <Mark tone={state === "disconnected" ? "bad" : "warning"} shape="question">
        {state === "disconnected" ? "Does not answer" : "Unknown"}
      </Mark>
    );
  }
  return maintenance === true ? (
    <Mark tone="warning" shape="bars">
      Maintenance
    </Mark>
  ) : (
    <Mark tone="good" shape="tick">
      Connected
    </Mark>
  );
}
