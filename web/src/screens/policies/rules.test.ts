import { expect, test } from "vitest";
import { ruleWords, withoutOption } from "../../actions/policy";
import { commandTime } from "../../lib/times";
import { draftOf, faultsOf, noRules, rulesOf } from "./draft";
import { rulesInWords } from "./rules";

const says = (about: string, rules: Parameters<typeof rulesInWords>[0]) =>
  rulesInWords(rules).find((sentence) => sentence.about === about)?.says;

test("rules are sentences with units", () => {
  const rules = {
    encryption_required: true,
    disk_limits: { iops: { per_second: 5000 }, bandwidth: { bytes_per_second: 104_857_600 } },
    snapshots: [{ every_s: 86_400, keep: 7, at_minutes: 125 }],
  };
  expect(says("Encryption", rules)).toBe("Every disk is encrypted.");
  expect(says("Limits of a disk", rules)).toBe(
    "At most 5,000 operations a second. At most 100 MiB a second.",
  );
  expect(says("Snapshots", rules)).toBe("One every 1 d at 02:05 UTC, 7 kept.");
  expect(says("Latency", {})).toContain("500 ms");
  expect(says("Latency", { disk_latency_p99_ms: 0 })).toContain("No alarm");
});

test("rules become the options of the command line", () => {
  expect(
    ruleWords({
      integrity_required: true,
      browser_console_denied: true,
      snapshots: [{ every_s: 3600, keep: 12 }],
      disk_limits: { bandwidth: { bytes_per_second: 104_857_600 } },
    }).filter(Boolean),
  ).toEqual([
    "--integrity-required",
    "--deny-browser-console",
    "--snapshots",
    "1h:12",
    "--bandwidth",
    "100M",
  ]);
  expect([commandTime(7_776_000), commandTime(5_400), commandTime(90)]).toEqual([
    "90d",
    "90m",
    "90s",
  ]);
  expect(withoutOption({ restart: "never" })).toEqual(["restart"]);
});

test("a draft keeps what it does not show", () => {
  const rules = {
    encryption_required: true,
    losses_survived: 2,
    restart: "never" as const,
    disk_limits: { iops: { per_second: 500, burst: 700 } },
    snapshots: [{ every_s: 86_400, keep: 7, at_minutes: 125, quiesce_within_s: 5 }],
  };
  expect(rulesOf(draftOf(rules))).toEqual(rules);
  expect(rulesOf(noRules)).toEqual({});
});

test("a change keeps rules that the page does not know", () => {
  const rules = { encryption_required: true, rule_of_a_newer_server: "deny" };
  expect(rulesOf(draftOf(rules))).toEqual(rules);
});

test("a draft is held to the limits of the document", () => {
  const faults = faultsOf({
    ...noRules,
    iops: "3",
    snapshots: [{ every: "1", unit: "60", keep: "99", kept: {} }],
  });
  expect(faults.iops).toContain("At least 16");
  expect(faults.snapshots[0]).toBeDefined();
  expect(faultsOf(noRules).isWhole).toBe(true);
});
