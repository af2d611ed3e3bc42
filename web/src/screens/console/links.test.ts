import { describe, expect, it } from "vitest";
import { safeLink } from "./links";

describe("links of a guest", () => {
  it("lead to the web", () => {
    expect(safeLink("https://example.com/a?b#c")?.href).toBe("https://example.com/a?b#c");
    expect(safeLink("http://192.0.2.1:8080/")?.host).toBe("192.0.2.1:8080");
  });

  it("show the host that they lead to", () => {
    expect(safeLink("https://b\u00fccher.example/")?.host).toBe("xn--bcher-kva.example");
    expect(safeLink("https://example.com@evil.example/")).toBeUndefined();
  });

  it("lead nowhere else", () => {
    for (const text of [
      "javascript:alert(1)",
      " javascript:alert(1)",
      "JAVASCRIPT:alert(1)",
      "data:text/html,<script>alert(1)</script>",
      "file:///etc/passwd",
      "vbscript:x",
      "blob:https://example.com/1",
      "ssh://host",
      "/vms",
      "",
      `https://example.com/${"a".repeat(3000)}`,
    ])
      expect(safeLink(text), text).toBeUndefined();
  });
});
