import { describe, expect, it } from "vitest";
import { isReply } from "./replies";

describe("a reply of the terminal", () => {
  it("is told from what a person types", () => {
    for (const reply of [
      "\x1b[12;40R",
      "\x1b[?1;2c",
      "\x1b[>0;276;0c",
      "\x1b[0n",
      "\x1b[?2004;1$y",
      "\x1b]11;rgb:0000/0000/0000\x1b\\",
      "\x1bP1$r0m\x1b\\",
      "\x1b[1;1R\x1b[0n",
    ])
      expect(isReply(reply), JSON.stringify(reply)).toBe(true);
    for (const typed of [
      "a",
      "\r",
      "\x1b",
      "\x1b[A",
      "\x1b[3~",
      "\x1bOP",
      "\x1b[1;5C",
      "\x03",
      "ls -R\r",
    ])
      expect(isReply(typed), JSON.stringify(typed)).toBe(false);
  });
});
