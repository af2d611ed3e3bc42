import { describe, expect, it } from "vitest";
import type { Task } from "../../api/types";
import { passesOfTasks, passingInWords, remember, verdictOf } from "./passing";

const passing = {
  bytes_per_second: 100 * 1024 ** 2,
  changed_bytes_per_second: 20 * 1024 ** 2,
  seconds_left: 12,
  slowed_percent: 0,
};
const task = (id: string, done: number): Task => ({
  id,
  by: "admin",
  cancelling: false,
  created_unix_ms: 0,
  kind: "vm_move_host",
  title: "Move VM web1 to host h2",
  object: { kind: "vm", name: "web1" },
  state: "running",
  progress: { done, total: 1000, unit: "bytes", passing },
});

describe("a VM that moves", () => {
  it("is said in words, with what comes of it", () => {
    expect(passingInWords(passing)).toBe(
      "100 MiB/s of memory pass and the guest changes 20 MiB/s: about 12 s left.",
    );
    const busy = { ...passing, seconds_left: null, slowed_percent: 40 };
    expect(passingInWords(busy)).toContain("does not come to an end like this.");
    expect(passingInWords(busy)).toContain("slowed down by 40 %");
    expect(verdictOf(passing)).toBe("converges");
    expect(verdictOf({ ...passing, slowed_percent: 20 })).toBe("slowed");
    expect(verdictOf(busy)).toBe("diverges");
  });

  it("is remembered reading by reading, and each reading once", () => {
    remember(task("a", 100), 1);
    remember(task("a", 100), 1);
    remember(task("a", 400), 2);
    expect(
      passesOfTasks
        .state()
        .get("a")
        ?.map(({ left }) => left),
    ).toEqual([900, 600]);
  });

  it("is forgotten when others were looked at after it", () => {
    remember(task("old", 1), 1);
    for (let other = 0; other < 15; other += 1) remember(task(`other${other}`, 1), 1);
    expect(passesOfTasks.state().has("old")).toBe(true);
    remember(task("last", 1), 1);
    expect(passesOfTasks.state().has("old")).toBe(false);
    expect(passesOfTasks.state().size).toBe(16);
  });
});
