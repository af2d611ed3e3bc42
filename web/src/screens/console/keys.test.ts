import { describe, expect, it } from "vitest";
import { sentBy, withControl } from "./keys";

describe("keys that a phone has not", () => {
  it("send what a keyboard sends", () => {
    expect(sentBy("up", false)).toBe("\x1b[A");
    expect(sentBy("up", true)).toBe("\x1bOA");
    expect(sentBy("escape", true)).toBe("\x1b");
  });

  it("make control characters", () => {
    expect(withControl("c")).toBe("\x03");
    expect(withControl("C")).toBe("\x03");
    expect(withControl("[")).toBe("\x1b");
    expect(withControl(" ")).toBe("\0");
    expect(withControl("?")).toBe("\x7f");
    expect(withControl("1")).toBeUndefined();
    expect(withControl("cd")).toBeUndefined();
    expect(withControl("\u00e4")).toBeUndefined();
  });
});
