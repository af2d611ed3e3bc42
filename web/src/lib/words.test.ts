import { describe, expect, it } from "vitest";
import { sentence, words } from "./words";

describe("words", () => {
  it("are read from names", () => {
    expect(words("vm_snapshot_create")).toBe("VM snapshot create");
    expect(words("key_unavailable")).toBe("key unavailable");
  });

  it("begin a sentence in capitals unless they are somebody's name", () => {
    expect(sentence("the key server has no backup")).toBe("The key server has no backup");
    expect(sentence("asked for: Start VM alpha")).toBe("Asked for: Start VM alpha");
    expect(sentence("key_unavailable since noon")).toBe("key unavailable since noon");
    expect(sentence("web1 does not answer")).toBe("web1 does not answer");
  });
});
