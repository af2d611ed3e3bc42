import { describe, expect, it } from "vitest";
import { Problem } from "../api/problem";
import { readFirst, readNews } from "./first";

describe("the first message", () => {
  it("says whether a console is written to", () => {
    expect(readFirst('{"welcome":{"console":{"writer":true}}}')).toEqual({ writer: true });
    expect(readFirst('{"welcome":{"console":{"writer":false}}}')).toEqual({ writer: false });
    expect(readFirst('{"welcome":{"console":{"writer":true,"recorded_bytes":7}}}')).toEqual({
      writer: true,
      recordedBytes: 7,
    });
    for (const recorded of ['"7"', "-1", "1e300", "null"])
      expect(
        readFirst(`{"welcome":{"console":{"writer":true,"recorded_bytes":${recorded}}}}`),
      ).toEqual({ writer: true });
    expect(readFirst('{"welcome":"vnc"}')).toEqual({ writer: true });
  });

  it("says why there is no connection", () => {
    const problem = readFirst('{"error":{"code":"x","message":"no","next_step":"wait"}}');
    expect(problem).toBeInstanceOf(Problem);
    expect(problem).toMatchObject({ message: "no", nextStep: "wait" });
  });

  it("is nothing else", () => {
    for (const message of [
      new ArrayBuffer(4),
      "",
      "null",
      "{",
      '{"welcome":{"console":{"writer":1}}}',
      '{"error":{"message":7}}',
    ])
      expect(readFirst(message)).toBeInstanceOf(Problem);
  });
});

describe("news in the output", () => {
  it("is the host's if it has the text of the connection", () => {
    const first = readFirst('{"welcome":{"console":{"writer":true,"news":"0f1e"}}}');
    expect(first).toEqual({ writer: true, news: "0f1e" });
    expect(readNews("0f1e;bob;the builder", "0f1e")).toBe("bob;the builder");
    expect(readNews("0f1e;", "0f1e")).toBe("somebody");
    for (const said of ["", ";bob", "bob", "0f1f;bob", "0f1e", "undefined;bob"]) {
      expect(readNews(said, "0f1e")).toBeUndefined();
      expect(readNews(said, undefined)).toBeUndefined();
    }
  });

  it("has no text that is none", () => {
    for (const news of ["7", "null", '""', "{}"])
      expect(readFirst(`{"welcome":{"console":{"writer":true,"news":${news}}}}`)).toEqual({
        writer: true,
      });
  });
});
