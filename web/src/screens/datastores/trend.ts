import type { Schemas } from "../../api/types";
import { bytes, plural } from "../../lib/units";

type Trend = Schemas["CapacityTrend"];

/** What a datastore's trend means, in words. */
export function trendWords(trend: Trend | undefined): string {
  if (trend === undefined) return "no trend is known";
  const { direction, days = 0, bytes_per_day, full_in_days } = trend;
  const change = `${bytes(Math.abs(bytes_per_day ?? 0))} a day`;
  const past = plural(days, "day");
  switch (direction) {
    case "unknown":
      return `no trend yet: there is a history of ${past}`;
    case "unclear":
      return `no direction in the last ${past}`;
    case "shrinking":
      return `shrinks by ${change}, as in the last ${past}`;
    case "growing":
      return typeof full_in_days === "number"
        ? `full in about ${plural(full_in_days, "day")} at the growth of the last ${past}, ${change}`
        : `grows by ${change}, as in the last ${past}: not full within 10 years`;
  }
}
