import { expect, it } from "vitest";
import { diskBytesBy, formatBy as formatByBytes } from "./format";

const bytes = (text: string) => Uint8Array.from(text, (letter) => letter.charCodeAt(0));
const formatBy = (name: string, start: string) => formatByBytes(name, bytes(start));

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

it("the size of a disk is that of a raw image, and in the head of a qcow2 one", () => {
  const head = new Uint8Array(32);
  new DataView(head.buffer).setBigUint64(24, 20n * 2n ** 30n);
  expect(diskBytesBy("qcow2", head, 100)).toBe(20 * 2 ** 30);
  expect(diskBytesBy("qcow2", head.subarray(0, 31), 100)).toBeUndefined();
  expect(diskBytesBy("raw", head, 512)).toBe(512);
  expect(diskBytesBy("vmdk", head, 100)).toBeUndefined();
});
