import { expect, it } from "vitest";
import { formatBy } from "./format";

it("a format is guessed where name and mark agree", () => {
  expect(formatBy("debian.qcow2", "QFI\u00fb\0\0")).toBe("qcow2");
  expect(formatBy("disk", "KDMV")).toBe("vmdk");
  expect(formatBy("disk.vhdx", "vhdxfile")).toBe("vhdx");
  expect(formatBy("disk.RAW", "\u00eb\u003c")).toBe("raw");
  expect(formatBy("disk.img", "")).toBe("raw");
});

it("a raw name over a mark, and no name over no mark, are asked about", () => {
  expect(formatBy("ubuntu.img", "QFI\u00fb")).toBe(undefined);
  expect(formatBy("disk", "\u00eb\u003c")).toBe(undefined);
});
