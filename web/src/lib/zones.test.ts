import { afterEach, expect, test } from "vitest";
import { moment, showTimesIn } from "./units";

afterEach(() => showTimesIn(undefined));

test("a moment is shown in the chosen zone, which it names", () => {
  const ms = Date.UTC(2026, 10, 30, 23, 30);
  showTimesIn("UTC");
  expect(moment(ms)).toBe("30 Nov 2026, 23:30:00 UTC");
  showTimesIn("Asia/Tokyo");
  expect(moment(ms)).toContain("1 Dec 2026, 08:30:00");
});
