/** The seed of cloud-init (NoCloud): a small FAT volume that is made here, in memory. */

const SECTOR = 512;
/** The size of the volume `seed` of a VM, in bytes. */
export const SEED_BYTES = 4 * 2 ** 20;
/** The longest of its files, in bytes. */
export const SEED_FILE_BYTES_MAX = 2 ** 20;

const CLUSTER_SECTORS = 4;
const CLUSTER = CLUSTER_SECTORS * SECTOR;
const RESERVED_SECTORS = 1;
const FATS = 2;
const FAT_SECTORS = 6;
const ROOT_ENTRIES = 64;
const ENTRY = 32;
const FAT_AT = RESERVED_SECTORS * SECTOR;
const ROOT_AT = FAT_AT + FATS * FAT_SECTORS * SECTOR;
const DATA_AT = ROOT_AT + ROOT_ENTRIES * ENTRY;
/** The label by which cloud-init finds the volume. */
const LABEL = "cidata     ";

const IS_LABEL = 0x08;
const IS_LONG_NAME = 0x0f;
const IS_FILE = 0x20;
/** Where the characters of a long name lie in an entry. */
const LONG_NAME_AT = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];
const LAST_OF_CHAIN = 0xfff;

export interface SeedFiles {
  userData: string;
  /** The VM's id and name, unless given. */
  metaData: string;
  networkConfig?: string;
}

const ascii = (text: string) => new TextEncoder().encode(text);

/** The files of a seed with their short names, in their order. */
function filesOf({ userData, metaData, networkConfig }: SeedFiles) {
  return [
    { name: "user-data", short: "USER-D~1   ", content: userData },
    { name: "meta-data", short: "META-D~1   ", content: metaData },
    ...(networkConfig === undefined
      ? []
      : [{ name: "network-config", short: "NETWOR~1   ", content: networkConfig }]),
  ].map((file) => ({ ...file, content: ascii(file.content) }));
}

/** The volume with these files. A file that is too long throws a `RangeError`. */
export function seedVolume(files: SeedFiles): Blob {
  const volume = new Uint8Array(SEED_BYTES);
  const view = new DataView(volume.buffer);
  writeBootSector(volume, view);
  const fat: number[] = [0xff8, LAST_OF_CHAIN];
  let entry = ROOT_AT;
  volume.set(ascii(LABEL), entry);
  volume[entry + 11] = IS_LABEL;
  entry += ENTRY;
  for (const { name, short, content } of filesOf(files)) {
    if (content.length > SEED_FILE_BYTES_MAX) throw new RangeError(`${name} is too long`);
    const first = fat.length;
    const clusters = Math.ceil(content.length / CLUSTER);
    for (let at = 1; at <= clusters; at += 1) {
      fat.push(at === clusters ? LAST_OF_CHAIN : first + at);
    }
    volume.set(content, DATA_AT + (first - 2) * CLUSTER);
    entry = writeLongName(volume, view, entry, name, short);
    volume.set(ascii(short), entry);
    volume[entry + 11] = IS_FILE;
    view.setUint16(entry + 26, clusters === 0 ? 0 : first, true);
    view.setUint32(entry + 28, content.length, true);
    entry += ENTRY;
  }
  for (let copy = 0; copy < FATS; copy += 1) writeFat(volume, copy, fat);
  return new Blob([volume]);
}

function writeBootSector(volume: Uint8Array, view: DataView): void {
  volume.set([0xeb, 0x3c, 0x90, ...ascii("MSWIN4.1")]);
  view.setUint16(11, SECTOR, true);
  volume[13] = CLUSTER_SECTORS;
  view.setUint16(14, RESERVED_SECTORS, true);
  volume[16] = FATS;
  view.setUint16(17, ROOT_ENTRIES, true);
  view.setUint16(19, SEED_BYTES / SECTOR, true);
  volume[21] = 0xf8;
  view.setUint16(22, FAT_SECTORS, true);
  view.setUint16(24, 32, true);
  view.setUint16(26, 2, true);
  volume[36] = 0x80;
  volume[38] = 0x29;
  view.setUint32(39, crypto.getRandomValues(new Uint32Array(1))[0] ?? 0, true);
  volume.set(ascii(LABEL), 43);
  volume.set(ascii("FAT12   "), 54);
  volume.set([0x55, 0xaa], 510);
}

/** The entries with a long name, last part first; returns where the short one follows. */
function writeLongName(
  volume: Uint8Array,
  view: DataView,
  at: number,
  name: string,
  short: string,
): number {
  const checksum = [...ascii(short)].reduce(
    (sum, byte) => (((sum & 1) << 7) + (sum >> 1) + byte) & 0xff,
    0,
  );
  const parts = Math.ceil(name.length / LONG_NAME_AT.length);
  for (let part = parts; part > 0; part -= 1) {
    volume[at] = part === parts ? part | 0x40 : part;
    volume[at + 11] = IS_LONG_NAME;
    volume[at + 13] = checksum;
    LONG_NAME_AT.forEach((place, index) => {
      const position = (part - 1) * LONG_NAME_AT.length + index;
      const code = position === name.length ? 0 : name.charCodeAt(position);
      view.setUint16(at + place, Number.isNaN(code) ? 0xffff : code, true);
    });
    at += ENTRY;
  }
  return at;
}

/** Two entries of twelve bits take three bytes. */
function writeFat(volume: Uint8Array, copy: number, fat: readonly number[]): void {
  const start = FAT_AT + copy * FAT_SECTORS * SECTOR;
  for (let at = 0; at < fat.length; at += 2) {
    const [even = 0, odd = 0] = [fat[at], fat[at + 1]];
    volume.set([even & 0xff, (even >> 8) | ((odd & 0xf) << 4), odd >> 4], start + (at / 2) * 3);
  }
}
