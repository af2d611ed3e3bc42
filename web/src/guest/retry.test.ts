import { describe, expect, it } from "vitest";
import { pauseBefore } from "./retry";

describe("the pauses of a lost connection", () => {
  it("double up to half a minute, and end", () => {
    const whole = Array.from({ length: 18 }, (_, tries) => pauseBefore(tries, 1));
    expect(whole.slice(0, 8)).toEqual([500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    expect(whole[15]).toBe(30_000);
    expect(whole.slice(16)).toEqual([undefined, undefined]);
  });

  it("differ by chance, by half at most", () => {
    expect(pauseBefore(3, 0)).toBe(2000);
    expect(pauseBefore(3, 0.5)).toBe(3000);
  });
});
