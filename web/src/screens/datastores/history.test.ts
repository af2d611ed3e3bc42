import { expect, test } from "vitest";
import { samplesOf } from "./history";

const HOUR = 3_600;
const NOW_S = 20_000 * 24 * HOUR + 12 * HOUR;

function sample(ago_s: number) {
  return {
    at_unix_seconds: NOW_S - ago_s,
    total_bytes: 100,
    used_bytes: 10,
    provisioned_bytes: 20,
  };
}

test("a week has its hours, and a longer time its days and the last hour", () => {
  const hours = [3, 2, 1, 0].map((ago) => sample(ago * HOUR));
  const days = [400, 40, 30, 2, 1].map((ago) => sample(ago * 24 * HOUR));
  const ages = (span: "week" | "month" | "year" | "all") =>
    samplesOf({ hours, days }, span).map(({ at_unix_seconds }) => (NOW_S - at_unix_seconds) / HOUR);
  expect(ages("week")).toEqual([3, 2, 1, 0]);
  expect(ages("month")).toEqual([30 * 24, 2 * 24, 24, 0]);
  expect(ages("year")).toHaveLength(5);
  expect(ages("all")).toHaveLength(6);
});

test("on the first day its hours are all that there is", () => {
  const hours = [2, 1, 0].map((ago) => sample(ago * HOUR));
  expect(samplesOf({ hours, days: [] }, "month")).toHaveLength(3);
});
