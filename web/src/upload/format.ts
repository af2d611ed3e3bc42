import type { Schemas } from "../api/types";

export type ImageFormat = Schemas["ImageFormat"];

/** The marks by which hosts know formats, at the start of an image. */
const MARKS: readonly (readonly [string, ImageFormat])[] = [
  ["QFI\u00fb", "qcow2"],
  ["KDMV", "vmdk"],
  ["# Disk DescriptorFile", "vmdk"],
  ["vhdxfile", "vhdx"],
];
const START_BYTES = 32;
/** Where the size of its disk lies in a qcow2 image. */
const QCOW2_SIZE_AT = 24;
const RAW_NAME = /\.(raw|img)$/i;

/**
 * The format of an image by its name and its mark. Nothing if the two contradict each other, which
 * the guest of a raw disk can bring about: a person has to say it then.
 */
export function formatBy(name: string, start: Uint8Array): ImageFormat | undefined {
  const text = String.fromCharCode(...start);
  const marked = MARKS.find(([mark]) => text.startsWith(mark))?.[1];
  const isNamedRaw = RAW_NAME.test(name);
  if (marked === undefined) return isNamedRaw ? "raw" : undefined;
  return isNamedRaw ? undefined : marked;
}

/** The bytes of the disk in an image, where its start or its size says so. */
export function diskBytesBy(
  format: ImageFormat,
  start: Uint8Array,
  size: number,
): number | undefined {
  if (format === "raw") return size;
  if (format !== "qcow2" || start.length < START_BYTES) return undefined;
  const view = new DataView(start.buffer, start.byteOffset, start.byteLength);
  return Number(view.getBigUint64(QCOW2_SIZE_AT, false));
}

/** An image that somebody has chosen. */
export interface ChosenImage {
  file: File;
  start: Uint8Array;
  /** Nothing until somebody says it. */
  format: ImageFormat | undefined;
}

export async function chosen(file: File): Promise<ChosenImage> {
  const start = new Uint8Array(await file.slice(0, START_BYTES).arrayBuffer());
  return { file, start, format: formatBy(file.name, start) };
}

/** What its disk has to have at the least, in bytes, if that is known. */
export function leastDiskBytes(image: ChosenImage | undefined): number | undefined {
  if (image?.format === undefined) return undefined;
  return diskBytesBy(image.format, image.start, image.file.size);
}
