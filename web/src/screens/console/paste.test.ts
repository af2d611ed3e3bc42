import { describe, expect, it } from "vitest";
import { asTyped, linesOf, pasted, pieces } from "./paste";

describe("a paste", () => {
  it("has the line ends of a keyboard", () => {
    expect(asTyped("a\r\nb\nc\rd\te")).toBe("a\rb\rc\rd\te");
  });

  it("has no control characters, so that it does not end before its end", () => {
    const hostile = "safe\x1b[201~\rrm -rf /\r\x03\x9b201~\x7f";
    expect(asTyped(hostile)).toBe("safe[201~\rrm -rf /\r201~");
    const sent = pasted(hostile, true);
    expect(sent.indexOf("\x1b[201~")).toBe(sent.length - 6);
  });

  it("is bracketed for a guest that asks for it", () => {
    expect(pasted("a\nb", true)).toBe("\x1b[200~a\rb\x1b[201~");
    expect(pasted("a\nb", false)).toBe("a\rb");
  });

  it("says how many lines it would run", () => {
    expect(linesOf("ls")).toBe(0);
    expect(linesOf("ls\n")).toBe(1);
    expect(linesOf("ls\r\npwd")).toBe(2);
    expect(linesOf("a\n\nb\n")).toBe(3);
  });

  it("is sent in pieces that are the whole", () => {
    const text = "\u00e4\u{1f600}x".repeat(20_000);
    const all = [...pieces(text)];
    expect(all.length).toBeGreaterThan(1);
    expect(all.every(({ length }) => length <= 16_384)).toBe(true);
    const joined = new Uint8Array(all.flatMap((piece) => [...piece]));
    expect(new TextDecoder().decode(joined)).toBe(text);
    expect([...pieces("")]).toEqual([]);
  });
});
