import { expect, test } from "vitest";
import type { Schemas } from "../../api/types";
import { filterOf, newestFirst, nextPage, queryOf } from "./pages";

const entry = (id: number): Schemas["AccessEntry"] => ({
  id,
  at_unix_ms: id,
  by: "ada",
  kind: "changed",
  message: "",
});
const page = (ids: readonly number[], total: number) => ({ items: ids.map(entry), total });

test("each page of a log without a filter ends where the one before it begins", () => {
  const newest = page([301, 302, 303], 303);
  const second = nextPage([newest], [undefined], 200);
  expect(second).toEqual({ after: 100, limit: 200 });
  const older = page(
    Array.from({ length: 200 }, (_, at) => 101 + at),
    303,
  );
  expect(nextPage([newest, older], [undefined, second], 200)).toEqual({ after: 0, limit: 100 });
});

test("nothing is asked for when all that match are there, or the log has no more", () => {
  expect(nextPage([page([5, 9], 2)], [undefined], 200)).toBeUndefined();
  expect(
    nextPage([page([90], 3), page([], 3)], [undefined, { after: 0, limit: 89 }], 200),
  ).toBeUndefined();
});

test("entries of pages that overlap are shown once, the newest first", () => {
  const entries = newestFirst([
    [entry(7), entry(8)],
    [entry(3), entry(7)],
  ]);
  expect(entries.map(({ id }) => id)).toEqual([8, 7, 3]);
});

test("the filter is in the address", () => {
  const filter = { by: "ada", since: "86400", kind: "refused" };
  expect(filterOf(new URLSearchParams(queryOf(filter)))).toEqual(filter);
});
