import { describe, expect, it } from "vitest";
import { wordOf } from "./returned";

describe("an error in the address", () => {
  it("is a word or nothing", () => {
    expect(wordOf("access_denied")).toBe("access denied");
    expect(wordOf("Call 555-0100 now")).toBe("another error");
    expect(wordOf("a".repeat(41))).toBe("another error");
    expect(wordOf("")).toBe("another error");
  });
});
