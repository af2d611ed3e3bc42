import { describe, expect, it } from "vitest";
import { limitsOf, numberFault, textFault } from "./limits";

describe("limits of the API's document", () => {
  it("hold for names", () => {
    const limits = limitsOf("CreateVm", "name");
    expect(textFault(limits, "web1")).toBeUndefined();
    expect(textFault(limits, "")).toBe("This is needed.");
    expect(textFault(limits, "a".repeat(64))).toBe("At most 63 characters.");
    expect(textFault(limits, "-web")).toContain("Letters, digits");
  });

  it("hold for amounts, with their units", () => {
    const limits = limitsOf("CreateVm", "memory_bytes");
    expect(numberFault(limits, 64 * 1024 ** 2)).toBeUndefined();
    expect(numberFault(limits, 1024 ** 2, (value) => `${value / 1024 ** 2} MiB`)).toBe(
      "At least 16 MiB.",
    );
    expect(numberFault(limits, 17 * 1024 ** 2, (value) => `${value / 1024 ** 2} MiB`)).toBe(
      "A multiple of 2 MiB.",
    );
    expect(numberFault(limits, undefined)).toBe("A number is needed.");
  });
});
