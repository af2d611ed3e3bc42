import type { Schemas } from "../../api/types";

export type Sample = Schemas["CapacitySample"];

const DAY_S = 86_400;

/** The times of which a history is shown. */
export const SPANS = {
  week: { label: "A week, by hours", days: 7 },
  month: { label: "A month", days: 31 },
  year: { label: "A year", days: 366 },
  all: { label: "All", days: Number.POSITIVE_INFINITY },
} as const;

export type SpanName = keyof typeof SPANS;

/** The samples of the time before the last one: hours of a week, else days and the last hour. */
export function samplesOf(
  { hours, days }: Pick<Schemas["DatastoreCapacity"], "hours" | "days">,
  span: SpanName,
): readonly Sample[] {
  const from = (hours.at(-1)?.at_unix_seconds ?? 0) - SPANS[span].days * DAY_S;
  const isShown = ({ at_unix_seconds }: Sample) => at_unix_seconds >= from;
  // Until some days are over, their hours are all that there is.
  return span === "week" || days.length < 2
    ? hours.filter(isShown)
    : [...days, ...hours.slice(-1)].filter(isShown);
}
