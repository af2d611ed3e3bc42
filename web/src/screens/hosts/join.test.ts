import { expect, test } from "vitest";
import { joinCommand } from "./join";

test("a new machine gets the address of enrolment and the fingerprint that it has to insist on", () => {
  expect(joinCommand({ enrolment: "10.0.0.5:5697", authority: "ab12", name: "host2" })).toBe(
    "strongroom serve --role host --join 10.0.0.5:5697 --token-file host2.token --fingerprint ab12",
  );
});
