import { describe, expect, it } from "vitest";
import { bytes, commandSize, distance, duration, latency } from "./units";

describe("units", () => {
  it("of bytes are binary", () => {
    expect([0, 512, 1024, 1536, 20 * 1024 ** 3, 1.5 * 1024 ** 4].map(bytes)).toEqual([
      "0 B",
      "512 B",
      "1 KiB",
      "1.5 KiB",
      "20 GiB",
      "1.5 TiB",
    ]);
  });

  it("on the command line are exact", () => {
    expect([0, 512, 64 * 1024 ** 2, 1536 * 1024 ** 2, 20 * 1024 ** 3].map(commandSize)).toEqual([
      "0",
      "512",
      "64M",
      "1536M",
      "20G",
    ]);
  });

  it("of durations are the two largest, and of distances the largest", () => {
    expect([4, 61, 3600, 90_061].map(duration)).toEqual(["4 s", "1 min 1 s", "1 h", "1 d 1 h"]);
    expect([0, 850, 1500, 2e6, 3.4e9].map(latency)).toEqual([
      "0 ns",
      "850 ns",
      "1.5 \u00b5s",
      "2 ms",
      "3.4 s",
    ]);
    expect([distance(0, 1000), distance(0, 90_000), distance(90_000, 0)]).toEqual([
      "now",
      "1 min ago",
      "in 1 min",
    ]);
  });
});
