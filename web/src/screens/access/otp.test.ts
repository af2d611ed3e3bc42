import { expect, test } from "vitest";
import { otpAddress } from "./otp";

test("the address is the one that the command line prints", () => {
  expect(otpAddress("ada", "[::1]:5690", "JBSWY3DPEHPK3PXP")).toBe(
    "otpauth://totp/Strongroom:ada%40%5B%3A%3A1%5D%3A5690?secret=JBSWY3DPEHPK3PXP&issuer=Strongroom&algorithm=SHA1&digits=6&period=30",
  );
});
