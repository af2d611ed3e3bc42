import { describe, expect, it } from "vitest";
import { commandLine } from "./action";
import { commandTime } from "../lib/times";
import { setCryptoperiod } from "./cryptoperiod";
import { addRule, removeRule } from "./schedule";

const daily = { every_s: 86_400, keep: 7 };
const hourly = { every_s: 3_600, keep: 18 };

describe("a schedule", () => {
  it("has one rule of each period", () => {
    const action = addRule("web1", [daily, hourly], { ...daily, keep: 3, at_minutes: 125 });
    expect(action.request.body).toEqual({
      rules: [hourly, { ...daily, keep: 3, at_minutes: 125 }],
    });
    expect(commandLine(action)).toBe(
      "strongroom vm snapshot schedule web1 --every 1d --keep 3 --at 02:05",
    );
  });

  it("loses one rule and keeps the others", () => {
    const action = removeRule("web1", [daily, hourly], 3_600);
    expect(action.request.body).toEqual({ rules: [daily] });
    expect(commandLine(action)).toBe("strongroom vm snapshot schedule web1 --every 1h --none");
  });

  it("says periods as the command line takes them", () => {
    expect([300, 3_600, 5_400, 172_800].map(commandTime)).toEqual(["5m", "1h", "90m", "2d"]);
  });

  it("of keys ends with nothing", () => {
    expect(setCryptoperiod({ name: "web1" }, undefined).request.body).toEqual({
      cryptoperiod: null,
    });
    expect(commandLine(setCryptoperiod({ name: "web1" }, { every_s: 90 * 86_400 }))).toBe(
      "strongroom vm set web1 --rekey-every 90d",
    );
  });
});
