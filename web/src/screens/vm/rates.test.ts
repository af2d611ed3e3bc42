import { describe, expect, it } from "vitest";
import type { Schemas } from "../../api/types";
import { loadOf, loadOfAll, percentile, ratesOf, ratesOfAll } from "./rates";

type DiskStats = Schemas["DiskStats"];

const NO_ERRORS = { no_space: 0, device: 0, integrity: 0, refused: 0, other: 0 };

function reading(
  atMs: number,
  requests: number,
  latency: Schemas["LatencyBucket"][],
  sinceMs = 0,
): DiskStats {
  return {
    disk: "disk0",
    since_unix_ms: sinceMs,
    read_unix_ms: atMs,
    in_flight: 3,
    stalled_ms: 0,
    operations: [
      {
        operation: "read",
        requests,
        bytes: requests * 4096,
        time_ns: 0,
        errors: NO_ERRORS,
        latency,
      },
    ],
  };
}

describe("percentile", () => {
  it("is the upper bound of the bucket in which the share is reached", () => {
    const buckets = [
      { below_ns: 2000, requests: 9 },
      { below_ns: 1000, requests: 90 },
      { below_ns: 9000, requests: 1 },
    ];
    expect(percentile(buckets, 0.5)).toBe(1000);
    expect(percentile(buckets, 0.9)).toBe(1000);
    expect(percentile(buckets, 0.91)).toBe(2000);
    expect(percentile(buckets, 0.99)).toBe(2000);
    expect(percentile(buckets, 1)).toBe(9000);
  });

  it("has no bound in the last bucket, and no value without requests", () => {
    expect(percentile([{ requests: 1 }], 0.5)).toBe(Number.POSITIVE_INFINITY);
    expect(percentile([], 0.5)).toBeNull();
    expect(percentile([{ below_ns: 1000, requests: 0 }], 0.5)).toBeNull();
  });
});

describe("rates", () => {
  const before = [reading(1000, 10, [{ below_ns: 1000, requests: 10 }])];
  const after = [
    reading(3000, 30, [
      { below_ns: 1000, requests: 10 },
      { below_ns: 4000, requests: 20 },
    ]),
  ];

  it("are growth over time, with percentiles of what is new", () => {
    const rates = ratesOf(before, after);
    expect(rates).toMatchObject({
      atMs: 3000,
      readIops: 10,
      readBytes: 40960,
      readP50: 4000,
      writeIops: 0,
      writeP99: null,
      inFlight: 3,
    });
  });

  it("count from nothing when counters were reset", () => {
    expect(
      ratesOf(before, [reading(3000, 4, [{ below_ns: 1000, requests: 4 }], 2000)])?.readIops,
    ).toBe(2);
  });

  it("are none between readings of the same moment", () => {
    expect(ratesOf(before, before)).toBeUndefined();
  });

  it("are of one disk or of all together", () => {
    const other = (disks: DiskStats[]) => ({
      disks: [...disks, ...disks.map((each) => ({ ...each, disk: "disk1" }))],
    });
    expect(ratesOfAll([other(before), other(after)], "").map(({ readIops }) => readIops)).toEqual([
      20,
    ]);
    expect(
      ratesOfAll([other(before), other(after)], "disk1").map(({ readIops }) => readIops),
    ).toEqual([10]);
  });
});

describe("load", () => {
  const S = 1e9;
  const at = (read_unix_ms: number, run_ns: number, wait_ns = 0) => ({
    read_unix_ms,
    vcpus: 4,
    run_ns,
    wait_ns,
  });

  it("is a part of the time of all processors", () => {
    expect(loadOf(at(1000, 5 * S), at(3000, 9 * S, 2 * S))).toEqual({
      atMs: 3000,
      run: 50,
      wait: 25,
    });
  });

  it("is none when another QEMU has begun, between readings of the same moment, and unread", () => {
    expect(loadOf(at(1000, 5 * S), at(3000, 4 * S))).toBeUndefined();
    expect(loadOf(at(1000, 5 * S), at(1000, 5 * S))).toBeUndefined();
    const readings = [{ disks: [] }, { disks: [], processors: at(1000, 0) }, { disks: [] }];
    expect(loadOfAll(readings)).toEqual([]);
  });
});
