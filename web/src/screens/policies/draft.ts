import { limitsOf, numberFault, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { bytes, count, duration } from "../../lib/units";
import { bytesOf, noSize, sizeOf, type Size } from "../../ui/SizeField";

type Rules = Schemas["PolicyRules"];
type SnapshotRule = Schemas["SnapshotRule"];

export interface SnapshotDraft {
  every: string;
  /** The seconds of its unit. */
  unit: string;
  keep: string;
  /** What of the rule the form does not show. */
  kept: Pick<SnapshotRule, "at_minutes" | "quiesce_within_s">;
}

/** The rules of a policy as they are typed. */
export interface Draft {
  isEncrypted: boolean;
  provider: string;
  hasTags: boolean;
  hasTpm: boolean;
  isThick: boolean;
  needsSafeHosts: boolean;
  deniesBrowsers: boolean;
  losses: string;
  latency: string;
  migration: string;
  restart: string;
  processor: string;
  iops: string;
  iopsBurst: string;
  bandwidth: Size;
  bandwidthBurst: Size;
  snapshots: readonly SnapshotDraft[];
  /** Rules that the form does not show, such as those of a newer server: a change keeps them. */
  kept: object;
}

export const noRules: Draft = {
  isEncrypted: false,
  provider: "",
  hasTags: false,
  hasTpm: false,
  isThick: false,
  needsSafeHosts: false,
  deniesBrowsers: false,
  losses: "",
  latency: "",
  migration: "",
  restart: "",
  processor: "",
  iops: "",
  iopsBurst: "",
  bandwidth: noSize,
  bandwidthBurst: noSize,
  snapshots: [],
  kept: {},
};

/** The rules that the form shows. */
const SHOWN: readonly string[] = [
  "encryption_required",
  "key_provider",
  "integrity_required",
  "tpm_required",
  "thick_required",
  "crypto_safe_hosts",
  "browser_console_denied",
  "losses_survived",
  "disk_latency_p99_ms",
  "migration",
  "restart",
  "processor",
  "disk_limits",
  "snapshots",
] satisfies (keyof Rules)[];

export const TIME_UNITS = [
  { value: "60", label: "minutes" },
  { value: "3600", label: "hours" },
  { value: "86400", label: "days" },
];

export const newSnapshots: SnapshotDraft = { every: "1", unit: "86400", keep: "7", kept: {} };

const text = (value: number | null | undefined) => (typeof value === "number" ? String(value) : "");
const size = (value: number | null | undefined) =>
  typeof value === "number" ? sizeOf(value) : noSize;

function snapshotDraft({ every_s, keep, ...kept }: SnapshotRule): SnapshotDraft {
  const unit = [...TIME_UNITS].reverse().find(({ value }) => every_s % Number(value) === 0);
  const seconds = unit?.value ?? "60";
  return { every: String(every_s / Number(seconds)), unit: seconds, keep: String(keep), kept };
}

export function draftOf(rules: Rules): Draft {
  const { iops, bandwidth } = rules.disk_limits ?? {};
  return {
    isEncrypted: rules.encryption_required === true,
    provider: rules.key_provider ?? "",
    hasTags: rules.integrity_required === true,
    hasTpm: rules.tpm_required === true,
    isThick: rules.thick_required === true,
    needsSafeHosts: rules.crypto_safe_hosts === true,
    deniesBrowsers: rules.browser_console_denied === true,
    losses: text(rules.losses_survived),
    latency: text(rules.disk_latency_p99_ms),
    migration: rules.migration ?? "",
    restart: rules.restart ?? "",
    processor: rules.processor ?? "",
    iops: text(iops?.per_second),
    iopsBurst: text(iops?.burst),
    bandwidth: size(bandwidth?.bytes_per_second),
    bandwidthBurst: size(bandwidth?.burst_bytes),
    snapshots: (rules.snapshots ?? []).map(snapshotDraft),
    kept: Object.fromEntries(Object.entries(rules).filter(([rule]) => !SHOWN.includes(rule))),
  };
}

/** The number that is typed; nothing if it is none. */
export function numberOf(typed: string): number | undefined {
  return /^[0-9]+$/.test(typed.trim()) ? Number(typed) : undefined;
}

function limitsOfDisks({ iops, iopsBurst, bandwidth, bandwidthBurst }: Draft): Schemas["IoLimits"] {
  const [operations, burst] = [numberOf(iops), numberOf(iopsBurst)];
  const [rate, burstBytes] = [bytesOf(bandwidth), bytesOf(bandwidthBurst)];
  return {
    ...(operations === undefined
      ? {}
      : { iops: { per_second: operations, ...(burst === undefined ? {} : { burst }) } }),
    ...(rate === undefined
      ? {}
      : {
          bandwidth: {
            bytes_per_second: rate,
            ...(burstBytes === undefined ? {} : { burst_bytes: burstBytes }),
          },
        }),
  };
}

function snapshotRule({ every, unit, keep, kept }: SnapshotDraft): SnapshotRule {
  return {
    every_s: (numberOf(every) ?? 0) * Number(unit),
    keep: numberOf(keep) ?? 0,
    ...kept,
  };
}

/** The rules; what is left out is left to each VM. */
export function rulesOf(draft: Draft): Rules {
  const limits = limitsOfDisks(draft);
  const [losses, latency] = [numberOf(draft.losses), numberOf(draft.latency)];
  return {
    ...draft.kept,
    ...(draft.isEncrypted ? { encryption_required: true } : {}),
    ...(draft.provider === "" ? {} : { key_provider: draft.provider }),
    ...(draft.hasTags ? { integrity_required: true } : {}),
    ...(draft.hasTpm ? { tpm_required: true } : {}),
    ...(draft.isThick ? { thick_required: true } : {}),
    ...(draft.needsSafeHosts ? { crypto_safe_hosts: true } : {}),
    ...(draft.deniesBrowsers ? { browser_console_denied: true } : {}),
    ...(losses === undefined ? {} : { losses_survived: losses }),
    ...(latency === undefined ? {} : { disk_latency_p99_ms: latency }),
    ...(draft.migration === "" ? {} : { migration: draft.migration as Schemas["MigrationMode"] }),
    ...(draft.restart === "" ? {} : { restart: draft.restart as Schemas["RestartPolicy"] }),
    ...(draft.processor === "" ? {} : { processor: draft.processor }),
    ...(Object.keys(limits).length === 0 ? {} : { disk_limits: limits }),
    ...(draft.snapshots.length === 0 ? {} : { snapshots: draft.snapshots.map(snapshotRule) }),
  };
}

export interface Faults {
  losses: string | undefined;
  latency: string | undefined;
  processor: string | undefined;
  iops: string | undefined;
  iopsBurst: string | undefined;
  bandwidth: string | undefined;
  bandwidthBurst: string | undefined;
  snapshots: readonly (string | undefined)[];
  /** Whether there is none. */
  isWhole: boolean;
}

type Show = (value: number) => string;

function optionalNumber(limits: Parameters<typeof numberFault>[0], typed: string, show: Show) {
  return typed === "" ? undefined : numberFault(limits, numberOf(typed), show);
}

function snapshotFault(draft: SnapshotDraft): string | undefined {
  const { every_s, keep } = snapshotRule(draft);
  const length = numberFault(limitsOf("SnapshotRule", "every_s"), every_s, duration);
  const kept = numberFault(limitsOf("SnapshotRule", "keep"), keep, count);
  if (length !== undefined) return `The time from one to the next: ${length}`;
  return kept === undefined ? undefined : `The number that is kept: ${kept}`;
}

export function faultsOf(draft: Draft): Faults {
  const limits = "PolicyRules";
  const faults = {
    losses: optionalNumber(limitsOf(limits, "losses_survived"), draft.losses, count),
    latency: optionalNumber(
      limitsOf(limits, "disk_latency_p99_ms"),
      draft.latency,
      (value) => `${count(value)} ms`,
    ),
    processor:
      draft.processor === ""
        ? undefined
        : textFault(limitsOf(limits, "processor"), draft.processor),
    iops: optionalNumber(limitsOf("IopsLimit", "per_second"), draft.iops, count),
    iopsBurst:
      draft.iopsBurst !== "" && draft.iops === ""
        ? "A burst takes a limit."
        : optionalNumber(limitsOf("IopsLimit", "burst"), draft.iopsBurst, count),
    bandwidth:
      draft.bandwidth.amount === ""
        ? undefined
        : numberFault(
            limitsOf("BandwidthLimit", "bytes_per_second"),
            bytesOf(draft.bandwidth),
            bytes,
          ),
    bandwidthBurst:
      draft.bandwidthBurst.amount === ""
        ? undefined
        : draft.bandwidth.amount === ""
          ? "A burst takes a limit."
          : numberFault(
              limitsOf("BandwidthLimit", "burst_bytes"),
              bytesOf(draft.bandwidthBurst),
              bytes,
            ),
  };
  const snapshots = draft.snapshots.map(snapshotFault);
  const all = [...Object.values(faults), ...snapshots];
  return { ...faults, snapshots, isWhole: all.every((fault) => fault === undefined) };
}
