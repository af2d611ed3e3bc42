import type { Schemas } from "../../api/types";

type DiskStats = Schemas["DiskStats"];
type Processors = Schemas["ProcessorStats"];
type Reading = Pick<Schemas["VmStats"], "disks" | "processors">;
type Operation = Schemas["DiskOperation"];
type Bucket = Schemas["LatencyBucket"];

/** What happened between two readings, a second. */
export interface Rates {
  atMs: number;
  readIops: number;
  writeIops: number;
  readBytes: number;
  writeBytes: number;
  /** Latencies in nanoseconds; nothing if no request was answered. */
  readP50: number | null;
  readP99: number | null;
  writeP50: number | null;
  writeP99: number | null;
  inFlight: number;
}

/** What a VM's processors did between two readings, in percent of the time of all of them. */
export interface Load {
  atMs: number;
  run: number;
  /** They could have run, and waited for a processor of the host. */
  wait: number;
}

export type LoadFigure = Exclude<keyof Load, "atMs">;

/** The load between two readings; nothing if no time has passed, or another QEMU has begun. */
export function loadOf(before: Processors, after: Processors): Load | undefined {
  const time_ns = (after.read_unix_ms - before.read_unix_ms) * 1e6 * Math.max(1, after.vcpus);
  const [run_ns, wait_ns] = [after.run_ns - before.run_ns, after.wait_ns - before.wait_ns];
  if (time_ns <= 0 || run_ns < 0 || wait_ns < 0) return undefined;
  const percent = (value: number) => (value / time_ns) * 100;
  return { atMs: after.read_unix_ms, run: percent(run_ns), wait: percent(wait_ns) };
}

/** The load between each two readings. */
export function loadOfAll(readings: readonly Reading[]): readonly Load[] {
  return readings.flatMap(({ processors: after }, index) => {
    const before = readings[index - 1]?.processors;
    return before === undefined || before === null || after === undefined || after === null
      ? []
      : (loadOf(before, after) ?? []);
  });
}

export type Figure = Exclude<keyof Rates, "atMs">;

/** The latency that a share of the requests stayed below; the last bucket has no bound. */
export function percentile(buckets: readonly Bucket[], share: number): number | null {
  const sorted = [...buckets]
    .filter(({ requests }) => requests > 0)
    .sort((one, other) => bound(one) - bound(other));
  const total = sorted.reduce((sum, { requests }) => sum + requests, 0);
  if (total === 0) return null;
  let passed = 0;
  for (const bucket of sorted) {
    passed += bucket.requests;
    if (passed >= total * share) return bound(bucket);
  }
  return null;
}

function bound({ below_ns }: Bucket): number {
  return below_ns ?? Number.POSITIVE_INFINITY;
}

interface Growth {
  requests: number;
  bytes: number;
  latency: Bucket[];
}

function growth(
  before: readonly DiskStats[],
  after: readonly DiskStats[],
  operation: Operation,
): Growth {
  const sum: Growth = { requests: 0, bytes: 0, latency: [] };
  for (const disk of after) {
    // Counters that were reset meanwhile have grown from nothing.
    const former = before.find(
      (each) => each.disk === disk.disk && each.since_unix_ms === disk.since_unix_ms,
    );
    const now = disk.operations.find((each) => each.operation === operation);
    const then = former?.operations.find((each) => each.operation === operation);
    if (now === undefined) continue;
    sum.requests += now.requests - (then?.requests ?? 0);
    sum.bytes += now.bytes - (then?.bytes ?? 0);
    sum.latency.push(...grown(then?.latency ?? [], now.latency));
  }
  return sum;
}

function grown(before: readonly Bucket[], after: readonly Bucket[]): Bucket[] {
  const former = new Map(before.map((bucket) => [bound(bucket), bucket.requests]));
  return after.map((bucket) => ({
    ...bucket,
    requests: bucket.requests - (former.get(bound(bucket)) ?? 0),
  }));
}

/** The rates between two readings of the same disks; nothing if no time has passed. */
export function ratesOf(
  before: readonly DiskStats[],
  after: readonly DiskStats[],
): Rates | undefined {
  const [from, to] = [before[0]?.read_unix_ms, after[0]?.read_unix_ms];
  if (from === undefined || to === undefined || to <= from) return undefined;
  const seconds = (to - from) / 1000;
  const read = growth(before, after, "read");
  const write = growth(before, after, "write");
  return {
    atMs: to,
    readIops: read.requests / seconds,
    writeIops: write.requests / seconds,
    readBytes: read.bytes / seconds,
    writeBytes: write.bytes / seconds,
    readP50: percentile(read.latency, 0.5),
    readP99: percentile(read.latency, 0.99),
    writeP50: percentile(write.latency, 0.5),
    writeP99: percentile(write.latency, 0.99),
    inFlight: after.reduce((sum, { in_flight }) => sum + in_flight, 0),
  };
}

/** The rates between each two readings, of one disk or of all together. */
export function ratesOfAll(readings: readonly Reading[], disk: string): readonly Rates[] {
  const chosen = readings.map(({ disks }) =>
    disks.filter((each) => disk === "" || each.disk === disk),
  );
  return chosen.flatMap((after, index) => {
    const before = chosen[index - 1];
    return before === undefined ? [] : (ratesOf(before, after) ?? []);
  });
}
