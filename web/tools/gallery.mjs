// Makes docs/page from pictures that the tests have kept (STRONGROOM_PICTURES=DIRECTORY): each with
// a palette of 256 colours, a fifth of its size, and the list of them in docs/page/README.md.
//
//   node tools/gallery.mjs DIRECTORY
import { existsSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { deflateSync, inflateSync } from "node:zlib";

const SIGNATURE = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
const COLOURS_MAX = 256;
const PICTURE_MAX_BYTES = 100_000;
const GALLERY = fileURLToPath(new URL("../../docs/page", import.meta.url));

/** @typedef {{ width: number, height: number, pixels: Buffer }} Picture Three bytes a pixel. */

/**
 * The pixels of a PNG as Chromium writes it: RGB or RGBA of 8 bits, not interlaced.
 * @param {Buffer} file
 * @returns {Picture}
 */
function decode(file) {
  let at = SIGNATURE.length;
  let [width, height, samples] = [0, 0, 3];
  const parts = [];
  while (at < file.length) {
    const length = file.readUInt32BE(at);
    const kind = file.toString("latin1", at + 4, at + 8);
    const data = file.subarray(at + 8, at + 8 + length);
    if (kind === "IHDR") {
      [width, height] = [data.readUInt32BE(0), data.readUInt32BE(4)];
      if (data[8] !== 8 || ![2, 6].includes(data[9] ?? 0) || data[12] !== 0)
        throw new Error("only RGB and RGBA of 8 bits, not interlaced, can be read");
      samples = data[9] === 6 ? 4 : 3;
    }
    if (kind === "IDAT") parts.push(data);
    at += length + 12;
  }
  const raw = inflateSync(Buffer.concat(parts));
  const line = width * samples;
  const plain = Buffer.alloc(height * line);
  for (let y = 0; y < height; y += 1) {
    const filter = raw[y * (line + 1)];
    for (let x = 0; x < line; x += 1) {
      const to = y * line + x;
      const left = x >= samples ? (plain[to - samples] ?? 0) : 0;
      const up = y > 0 ? (plain[to - line] ?? 0) : 0;
      const corner = x >= samples && y > 0 ? (plain[to - line - samples] ?? 0) : 0;
      const value = raw[y * (line + 1) + 1 + x] ?? 0;
      plain[to] = value + predicted(filter ?? 0, left, up, corner);
    }
  }
  const pixels = Buffer.alloc(width * height * 3);
  for (let pixel = 0; pixel < width * height; pixel += 1)
    plain.copy(pixels, pixel * 3, pixel * samples, pixel * samples + 3);
  return { width, height, pixels };
}

/**
 * What a filter of PNG adds to a byte.
 * @param {number} filter
 * @param {number} left
 * @param {number} up
 * @param {number} corner
 */
function predicted(filter, left, up, corner) {
  switch (filter) {
    case 1:
      return left;
    case 2:
      return up;
    case 3:
      return (left + up) >> 1;
    case 4: {
      const [a, b, c] = [left, up, corner].map((each) => Math.abs(left + up - corner - each));
      if (a === undefined || b === undefined || c === undefined) return 0;
      return a <= b && a <= c ? left : b <= c ? up : corner;
    }
    default:
      return 0;
  }
}

/**
 * A PNG with a palette: colours that many pixels have, and for others the nearest.
 * @param {Picture} picture
 */
function withPalette({ width, height, pixels }) {
  const colourOf = (/** @type {number} */ pixel) => pixels.readUIntBE(pixel * 3, 3);
  /** @type {Map<number, number>} */
  const counts = new Map();
  for (let pixel = 0; pixel < width * height; pixel += 1) {
    const colour = colourOf(pixel);
    counts.set(colour, (counts.get(colour) ?? 0) + 1);
  }
  // Of colours that look the same, one stands for all, or shades of grey leave no room for others.
  /** @type {Map<number, number>} */
  const alike = new Map();
  const palette = [...counts]
    .sort(([, one], [, other]) => other - one)
    .map(([colour]) => colour)
    .filter((colour) => {
      const look = (colour >> 3) & 0x1f1f1f;
      return alike.has(look) ? false : alike.set(look, colour);
    })
    .slice(0, COLOURS_MAX);
  const indices = new Map(palette.map((colour, index) => [colour, index]));
  for (const colour of counts.keys())
    if (!indices.has(colour)) indices.set(colour, nearest(palette, colour));
  const rows = Buffer.alloc(height * (width + 1));
  for (let y = 0; y < height; y += 1)
    for (let x = 0; x < width; x += 1)
      rows[y * (width + 1) + 1 + x] = indices.get(colourOf(y * width + x)) ?? 0;
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, 3, 0, 0, 0], 8);
  const colours = Buffer.alloc(palette.length * 3);
  palette.forEach((colour, index) => colours.writeUIntBE(colour, index * 3, 3));
  return Buffer.concat([
    SIGNATURE,
    chunk("IHDR", head),
    chunk("PLTE", colours),
    chunk("IDAT", deflateSync(rows, { level: 9, memLevel: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

/** @param {readonly number[]} palette @param {number} colour */
function nearest(palette, colour) {
  const parts = (/** @type {number} */ value) => [value >> 16, (value >> 8) & 255, value & 255];
  const [red = 0, green = 0, blue = 0] = parts(colour);
  let [best, least] = [0, Infinity];
  palette.forEach((each, index) => {
    const [r = 0, g = 0, b = 0] = parts(each);
    const distance = (r - red) ** 2 + (g - green) ** 2 + (b - blue) ** 2;
    if (distance < least) [best, least] = [index, distance];
  });
  return best;
}

/** @param {string} kind @param {Buffer} data */
function chunk(kind, data) {
  const body = Buffer.concat([Buffer.from(kind, "latin1"), data]);
  const around = Buffer.alloc(4);
  around.writeUInt32BE(data.length);
  const sum = Buffer.alloc(4);
  sum.writeUInt32BE(crc32(body));
  return Buffer.concat([around, body, sum]);
}

/** The check of a chunk (ISO 3309), which Node 18 has not. @param {Buffer} data */
function crc32(data) {
  let sum = ~0;
  for (const byte of data) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return ~sum >>> 0;
}

/** The pictures of the gallery in their order: the name of a screen, and what it is. */
const SCREENS = /** @type {const} */ ([
  ["sign-in", "Signing in"],
  ["overview", "Overview"],
  ["vms", "VMs"],
  ["vms-filtered", "VMs of a filter"],
  ["create", "A VM is made"],
  ["vm", "One VM"],
  ["vm-disks", "Its disks, with their layers"],
  ["vm-snapshots", "Its snapshots"],
  ["vm-keys", "Its keys"],
  ["vm-performance", "What it does"],
  ["vm-dumps", "Its dumps"],
  ["vm-activity", "What was done with it"],
  ["console", "Its console"],
  ["screen", "Its screen"],
  ["hosts", "Hosts"],
  ["host", "One host"],
  ["balance", "Balance of hosts"],
  ["datastores", "Datastores"],
  ["datastore", "One datastore"],
  ["datastore-contents", "What is on it"],
  ["disks", "All disks"],
  ["disk", "One disk"],
  ["networks", "Networks"],
  ["network", "One network"],
  ["placement-groups", "Placement groups"],
  ["placement-group", "One placement group"],
  ["keys", "Key providers"],
  ["keys-of-vms", "Keys of VMs"],
  ["policies", "Policies"],
  ["policy", "One policy"],
  ["policy-new", "A policy is made"],
  ["access", "Users"],
  ["user", "One user"],
  ["access-providers", "Identity providers"],
  ["access-roles", "Roles"],
  ["access-tokens", "Tokens"],
  ["access-sessions", "Sessions"],
  ["access-folders", "Folders"],
  ["access-emergency", "Emergency credentials"],
  ["access-review", "Who could read what"],
  ["access-explain", "Why somebody may do something"],
  ["audit", "Access log"],
  ["integrity", "Its verification"],
  ["recipients", "Recipients of alarms"],
  ["backups", "Backups of the inventory"],
  ["tasks", "Tasks"],
  ["alarms", "Alarms"],
  ["events", "Events"],
  ["settings", "Settings"],
  ["about", "About"],
  ["nowhere", "An address of nothing"],
]);
/** Those that are shown in the dark, and on a phone, too. */
const DARK = ["overview", "vms", "vm", "vm-snapshots", "keys"];
const PHONE = ["overview", "vms", "vm", "disks", "create"];

const [from] = process.argv.slice(2);
if (from === undefined) throw new Error("node tools/gallery.mjs DIRECTORY");

/** @param {string} picture @param {string} name */
function keep(picture, name) {
  const source = join(from ?? "", `${picture}.png`);
  if (!existsSync(source)) throw new Error(`there is no picture ${source}`);
  const small = withPalette(decode(readFileSync(source)));
  if (small.length > PICTURE_MAX_BYTES)
    throw new Error(`${picture} has ${small.length} bytes, and ${PICTURE_MAX_BYTES} at most`);
  writeFileSync(join(GALLERY, `${name}.png`), small);
}

for (const file of readdirSync(GALLERY)) if (file.endsWith(".png")) rmSync(join(GALLERY, file));
for (const [name] of SCREENS) keep(`${name}-light-1280`, name);
for (const name of DARK) keep(`${name}-dark-1280`, `${name}-dark`);
for (const name of PHONE) keep(`${name}-light-390`, `${name}-phone`);

const words = new Map(SCREENS.map(([name, title]) => [String(name), String(title)]));
/**
 * Pictures in rows of a table.
 * @param {readonly string[]} names
 * @param {string} suffix
 * @param {number} width
 */
function table(names, suffix, width) {
  const cells = names.map(
    (name) => `![${words.get(name) ?? name}](${name}${suffix}.png)<br>${words.get(name) ?? name}`,
  );
  const rows = [];
  for (let first = 0; first < cells.length; first += width)
    rows.push(
      `| ${Array.from({ length: width }, (_, column) => cells[first + column] ?? "").join(" | ")} |`,
    );
  return [`|${" |".repeat(width)}`, `|${"---|".repeat(width)}`, ...rows].join("\n");
}
writeFileSync(
  join(GALLERY, "README.md"),
  `# Every screen of the page

As the tests see them (\`web/tests/page.test.mjs\`, \`guests.test.mjs\`), with the few objects that the tests make. Made anew by:

\`\`\`
STRONGROOM_PICTURES=DIRECTORY scripts/page test
STRONGROOM_PICTURES=DIRECTORY scripts/page guests
cd web && node tools/gallery.mjs DIRECTORY
\`\`\`

[TASKS.md](TASKS.md) has ten everyday tasks in clicks.

${table(
  SCREENS.map(([name]) => name),
  "",
  2,
)}

## In the dark

${table(DARK, "-dark", 2)}

## On a phone

${table(PHONE, "-phone", 3)}
`,
);
const sizes = readdirSync(GALLERY)
  .filter((file) => file.endsWith(".png"))
  .map((file) => statSync(join(GALLERY, file)).size);
console.log(`${sizes.length} pictures, ${sizes.reduce((sum, size) => sum + size, 0)} bytes`);
