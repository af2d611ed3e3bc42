import type { Schemas } from "../api/types";

export type ImageFormat = Schemas["ImageFormat"];

/** The marks by which hosts know formats, at the start of an image. */
const MARKS: readonly (readonly [string, ImageFormat])[] = [
  ["QFI\u00fb", "qcow2"],
  ["KDMV", "vmdk"],
  ["# Disk DescriptorFile", "vmdk"],
  ["vhdxfile", "vhdx"],
];
const MARK_BYTES = 32;
const RAW_NAME = /\.(raw|img)$/i;

/**
 * The format of an image by its name and its mark. Nothing if the two contradict each other, which
 * the guest of a raw disk can bring about: a person has to say it then.
 */
export function formatBy(name: string, start: string): ImageFormat | undefined {
  const marked = MARKS.find(([mark]) => start.startsWith(mark))?.[1];
  const isNamedRaw = RAW_NAME.test(name);
  if (marked === undefined) return isNamedRaw ? "raw" : undefined;
  return isNamedRaw ? undefined : marked;
}

export async function formatOf(file: File): Promise<ImageFormat | undefined> {
  const start = new Uint8Array(await file.slice(0, MARK_BYTES).arrayBuffer());
  return formatBy(file.name, String.fromCharCode(...start));
}
