import type { Schemas } from "../../api/types";
import { bytes, count, duration, plural } from "../../lib/units";

type Rules = Schemas["PolicyRules"];
type Rule = Schemas["SnapshotRule"];

/** One thing that a policy says, as a sentence. */
export interface Sentence {
  about: string;
  says: string;
}

const MIGRATION: Readonly<Record<Schemas["MigrationMode"], string>> = {
  required: "Memory is encrypted on its way to another host.",
  opportunistic:
    "Memory is encrypted on its way, unless one of the two hosts has no instructions for it. VMs that are or were encrypted are always.",
  disabled:
    "Memory passes to another host in plain text. VMs that are or were encrypted are always encrypted on their way.",
};
/** The latency of the alarm if a policy names none. */
const LATENCY_DEFAULT_MS = 500;

function timeOfDay(minutes: number): string {
  const part = (value: number) => String(value).padStart(2, "0");
  return `${part(Math.floor(minutes / 60))}:${part(minutes % 60)} UTC`;
}

export function snapshotsInWords({ every_s, keep, at_minutes, quiesce_within_s }: Rule): string {
  return [
    `One every ${duration(every_s)}`,
    typeof at_minutes === "number" ? ` at ${timeOfDay(at_minutes)}` : "",
    `, ${count(keep)} kept`,
    typeof quiesce_within_s === "number"
      ? `, with the guest\u2019s file systems frozen within ${count(quiesce_within_s)} s`
      : "",
    ".",
  ].join("");
}

export function limitsInWords({ iops, bandwidth }: Schemas["IoLimits"]): readonly string[] {
  return [
    ...(iops === undefined || iops === null
      ? []
      : [
          `At most ${count(iops.per_second)} operations a second${
            typeof iops.burst === "number" ? `, ${count(iops.burst)} at once after a pause` : ""
          }.`,
        ]),
    ...(bandwidth === undefined || bandwidth === null
      ? []
      : [
          `At most ${bytes(bandwidth.bytes_per_second)} a second${
            typeof bandwidth.burst_bytes === "number"
              ? `, ${bytes(bandwidth.burst_bytes)} at once after a pause`
              : ""
          }.`,
        ]),
  ];
}

/** What a policy demands, and what it leaves to each VM. */
export function rulesInWords(rules: Rules): readonly Sentence[] {
  const { disk_latency_p99_ms: latency, losses_survived: losses, processor, restart } = rules;
  const { key_provider: provider, snapshots = [] } = rules;
  const limits = limitsInWords(rules.disk_limits ?? {});
  return [
    {
      about: "Encryption",
      says:
        rules.encryption_required === true
          ? "Every disk is encrypted."
          : "Each VM decides whether its disks are encrypted.",
    },
    {
      about: "Keys",
      says:
        typeof provider === "string"
          ? `Keys are at the provider ${provider}.`
          : "Keys are at any provider.",
    },
    {
      about: "Integrity",
      says:
        rules.integrity_required === true
          ? "Encrypted disks that keep data have tags: a changed or replaced block cannot be read."
          : "Tags are not demanded.",
    },
    {
      about: "TPM",
      says: rules.tpm_required === true ? "Every VM has a TPM." : "A TPM is not demanded.",
    },
    {
      about: "Hosts",
      says:
        rules.crypto_safe_hosts === true
          ? "VMs run only on hosts where no secret in memory can reach a disk."
          : "VMs run on any host.",
    },
    {
      about: "Processor",
      says:
        typeof processor === "string"
          ? `The processor is ${processor}.`
          : "Each VM decides on its processor.",
    },
    {
      about: "Browsers",
      says:
        rules.browser_console_denied === true
          ? "Consoles, screens and images are refused to browsers: the command line alone has them."
          : "Browsers show consoles and screens, and send images.",
    },
    { about: "Moves", says: MIGRATION[rules.migration ?? "required"] },
    {
      about: "Space",
      says:
        rules.thick_required === true
          ? "Disks take their whole space when they are made."
          : "Disks take space as they are written.",
    },
    {
      about: "Losses",
      says:
        typeof losses === "number" && losses > 0
          ? `All data outlives the loss of ${plural(losses, "storage device")} at one time: the datastore is on a Ceph cluster.`
          : "Any datastore will do.",
    },
    {
      about: "Limits of a disk",
      says: limits.length === 0 ? "None." : limits.join(" "),
    },
    {
      about: "Latency",
      says:
        latency === 0
          ? "No alarm is raised about slow disks."
          : `An alarm is raised when 1 of 100 requests to a disk takes longer than ${count(latency ?? LATENCY_DEFAULT_MS)} ms for five minutes.`,
    },
    {
      about: "Snapshots",
      says:
        snapshots.length === 0 ? "None are demanded." : snapshots.map(snapshotsInWords).join(" "),
    },
    {
      about: "After a crash",
      says:
        restart === "never"
          ? "A VM stays off."
          : restart === "on_failure"
            ? "A VM is started again."
            : "Each VM decides.",
    },
  ];
}
