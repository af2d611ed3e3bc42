import type { Schemas, Task } from "../../api/types";
import { bytes, duration } from "../../lib/units";
import { Store } from "../../lib/store";

/** How the memory of a VM passes to another host, at a moment. */
export interface Pass {
  atMs: number;
  /** Bytes a second that are sent. */
  sent: number;
  /** Bytes a second that the guest changes. */
  changed: number;
  /** Bytes that are still to be sent. */
  left: number;
}

/** As many moves are remembered as somebody may look at. */
const TASKS_MAX = 16;
/** Ten minutes, at one reading a second. */
const KEPT_MAX = 600;

/** What was read of the moves that somebody has looked at, by their tasks. */
const passes = new Store<ReadonlyMap<string, readonly Pass[]>>(new Map());
export const passesOfTasks = passes;

/** Remembers how far a move is, if its memory passes. */
export function remember({ id, progress }: Task, atMs: number): void {
  const passing = progress?.passing;
  if (progress === undefined || progress === null || passing === undefined || passing === null)
    return;
  const known = passes.state();
  const former = known.get(id) ?? [];
  if (former.at(-1)?.atMs === atMs) return;
  const pass: Pass = {
    atMs,
    sent: passing.bytes_per_second,
    changed: passing.changed_bytes_per_second,
    left: Math.max(0, progress.total - progress.done),
  };
  // The one that was looked at last is the last to be forgotten.
  const others = [...known].filter(([task]) => task !== id).slice(1 - TASKS_MAX);
  passes.become(new Map([...others, [id, [...former, pass].slice(-KEPT_MAX)]]));
}

export type Verdict = "converges" | "slowed" | "diverges";

/** Whether a move comes to an end at the present rates. */
export function verdictOf({ seconds_left, slowed_percent }: Schemas["Passing"]): Verdict {
  if (typeof seconds_left !== "number") return "diverges";
  return slowed_percent > 0 ? "slowed" : "converges";
}

const perSecond = (value: number) => `${bytes(Math.round(value))}/s`;

/** How a move is, in a sentence: as the command line says it, with what follows. */
export function passingInWords(passing: Schemas["Passing"]): string {
  const { bytes_per_second, changed_bytes_per_second, seconds_left, slowed_percent } = passing;
  const slowed =
    slowed_percent > 0 ? ` Its processors are slowed down by ${slowed_percent} % for it.` : "";
  const rates = `${perSecond(bytes_per_second)} of memory pass and the guest changes ${perSecond(changed_bytes_per_second)}`;
  return typeof seconds_left === "number"
    ? `${rates}: about ${duration(seconds_left)} left.${slowed}`
    : `${rates}, which is as fast: it does not come to an end like this.${slowed}`;
}
