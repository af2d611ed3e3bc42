import type { Schemas } from "../api/types";
import { commandTime } from "../lib/times";
import { commandSize } from "../lib/units";
import { action, type Action } from "./action";

type Rules = Schemas["PolicyRules"];

/** An option with a value, if there is one. */
function word(option: string, value: string | number | null | undefined): readonly string[] {
  return value === undefined || value === null ? [] : [option, String(value)];
}

/** The rules as options of `strongroom policy`. */
export function ruleWords(rules: Rules): readonly (string | false)[] {
  const { disk_limits, snapshots = [] } = rules;
  const { iops, bandwidth } = disk_limits ?? {};
  const size = (bytes: number | null | undefined) =>
    typeof bytes === "number" ? commandSize(bytes) : undefined;
  return [
    rules.encryption_required === true && "--encryption-required",
    ...word("--key-provider", rules.key_provider),
    rules.crypto_safe_hosts === true && "--crypto-safe-hosts",
    ...word("--disk-latency-p99-ms", rules.disk_latency_p99_ms),
    rules.tpm_required === true && "--tpm-required",
    rules.integrity_required === true && "--integrity-required",
    rules.thick_required === true && "--thick-required",
    ...word("--losses-survived", rules.losses_survived),
    ...word("--migration", rules.migration),
    rules.browser_console_denied === true && "--deny-browser-console",
    ...snapshots.flatMap(({ every_s, keep }) => ["--snapshots", `${commandTime(every_s)}:${keep}`]),
    ...word("--processor", rules.processor),
    ...word("--iops", iops?.per_second),
    ...word("--iops-burst", iops?.burst),
    ...word("--bandwidth", size(bandwidth?.bytes_per_second)),
    ...word("--bandwidth-burst", size(bandwidth?.burst_bytes)),
  ];
}

/** The rules that only the API can set: the command line has no option for them. */
export function withoutOption({ restart, snapshots = [] }: Rules): readonly string[] {
  return [
    ...(restart === undefined || restart === null ? [] : ["restart"]),
    ...(snapshots.some(
      ({ at_minutes, quiesce_within_s }) =>
        typeof at_minutes === "number" || typeof quiesce_within_s === "number",
    )
      ? ["the hour and the quiescing of snapshots"]
      : []),
  ];
}

export function createPolicy(name: string, description: string, rules: Rules): Action {
  return action(
    `Create policy ${name}`,
    "policy_create",
    { body: { name, rules, ...(description === "" ? {} : { description }) } },
    [
      ...["policy", "create", name],
      ...(description === "" ? [] : ["--description", description]),
      ...ruleWords(rules),
    ],
  );
}

export function setPolicy(name: string, rules: Rules): Action {
  return action(
    `Change policy ${name}`,
    "policy_set",
    { path: { policy: name }, body: { rules } },
    [...["policy", "set", name], ...ruleWords(rules)],
  );
}

export function applyPolicy(name: string): Action {
  return action(`Apply policy ${name}`, "policy_apply", { path: { policy: name }, body: {} }, [
    ...["policy", "apply", name],
  ]);
}

export function deletePolicy(name: string): Action {
  return action(`Delete policy ${name}`, "policy_delete", { path: { policy: name } }, [
    ...["policy", "delete", name],
  ]);
}
