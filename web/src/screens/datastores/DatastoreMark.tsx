import type { Schemas } from "../../api/types";
import { Mark, type Tone } from "../../ui/Status";

type State = Schemas["DatastoreState"];

const STATES: Readonly<
  Record<State, readonly [Tone, "tick" | "cross" | "triangle" | "question", string]>
> = {
  available: ["good", "tick", "Available"],
  full: ["bad", "triangle", "Full"],
  unavailable: ["bad", "cross", "Not available"],
  unknown: ["warning", "question", "Unknown"],
};

export function DatastoreMark({ state }: { state: State }) {
  const [tone, shape, word] = STATES[state];
  return (
    <Mark tone={tone} shape={shape}>
      {word}
    </Mark>
  );
}
