import { expect, test } from "vitest";
import { headsOf } from "./heads";

const hash = "0".repeat(64);

test("heads are read one a line, and nothing else is taken for one", () => {
  const head = { id: 7, hash };
  expect(headsOf(`${JSON.stringify(head)}\n\n${JSON.stringify(head)}\n`)).toEqual([head, head]);
  expect(headsOf("")).toEqual([]);
  expect(headsOf("{}")).toBeUndefined();
  expect(headsOf(JSON.stringify({ id: -1, hash }))).toBeUndefined();
  expect(headsOf(JSON.stringify({ id: 7, hash: "AB" }))).toBeUndefined();
  expect(headsOf("not JSON")).toBeUndefined();
});
