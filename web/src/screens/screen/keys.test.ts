import { describe, expect, it } from "vitest";
import { CHORDS, difference, keysymsOf } from "./keys";

describe("what is typed at a screen", () => {
  it("has the keysyms of its characters", () => {
    expect(keysymsOf("aA\u00e4")).toEqual([0x61, 0x41, 0xe4]);
    expect(keysymsOf("\u20ac\u{1f600}")).toEqual([0x010020ac, 0x0101f600]);
    expect(keysymsOf("a\r\nb\tc")).toEqual([0x61, 0xff0d, 0x62, 0xff09, 0x63]);
    expect(keysymsOf("\x1b\x03\x7f")).toEqual([]);
  });

  it("is what a phone's keyboard has changed", () => {
    expect(difference("____", "____a")).toEqual({ taken: 0, added: "a" });
    expect(difference("____helo", "____hello")).toEqual({ taken: 1, added: "lo" });
    expect(difference("____", "___")).toEqual({ taken: 1, added: "" });
    expect(difference("__\u{1f600}", "__")).toEqual({ taken: 1, added: "" });
  });

  it("has function keys in their order", () => {
    const f7 = CHORDS.find(({ label }) => label === "Ctrl Alt F7");
    expect(f7?.keys.at(-1)).toEqual({ keysym: 0xffc4, code: "F7" });
  });
});
