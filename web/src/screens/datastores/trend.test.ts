import { expect, test } from "vitest";
import { trendWords } from "./trend";

const GIB = 1024 ** 3;

test("a trend says when a datastore is full, and nothing where nothing is known", () => {
  const growing = { direction: "growing", days: 30, bytes_per_day: 10 * GIB } as const;
  expect(trendWords({ ...growing, full_in_days: 40 })).toBe(
    "full in about 40 days at the growth of the last 30 days, 10 GiB a day",
  );
  expect(trendWords({ ...growing, full_in_days: 1 })).toMatch(/^full in about 1 day at/);
  expect(trendWords(growing)).toMatch(/not full within 10 years$/);
  expect(trendWords({ ...growing, direction: "shrinking", bytes_per_day: -GIB })).toBe(
    "shrinks by 1 GiB a day, as in the last 30 days",
  );
  expect(trendWords({ direction: "unclear", days: 12 })).toBe("no direction in the last 12 days");
  expect(trendWords({ direction: "unknown", days: 0 })).toBe(
    "no trend yet: there is a history of 0 days",
  );
});
