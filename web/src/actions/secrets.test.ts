import { expect, test } from "vitest";
import { action, curlLine } from "./action";

test("a request is shown without its secrets, however deep they are", () => {
  const made = action(
    "Create chat",
    "recipient_create",
    {
      body: {
        name: "chat",
        to: { type: "webhook", url: "https://chat.example.com/SECRET" },
      },
    },
    [],
    ["url"],
  );
  const line = curlLine(made, "https://sr.example.com");
  expect(line).not.toContain("SECRET");
  expect(line).toContain("chat");
});
