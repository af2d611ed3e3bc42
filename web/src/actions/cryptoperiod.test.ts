import { expect, test } from "vitest";
import { commandLine } from "./action";
import { minutesOf } from "../lib/times";
import { setCryptoperiod } from "./cryptoperiod";

test("a period and its window are what the command line takes", () => {
  const period = { every_s: 7_776_000, window: { from_minutes: 60, to_minutes: 300 } };
  expect(commandLine(setCryptoperiod({ name: "web1" }, period))).toBe(
    "strongroom vm set web1 --rekey-every 90d --rekey-window 01:00-05:00",
  );
  expect(commandLine(setCryptoperiod({ name: "web1" }, undefined))).toBe(
    "strongroom vm set web1 --rekey-every never",
  );
});

test("times of the day are read as people write them", () => {
  expect(["1:05", "23:59", "24:00", "12:60", ""].map(minutesOf)).toEqual([
    65,
    1439,
    undefined,
    undefined,
    undefined,
  ]);
});
