// The licences of the packages that the page is made of: those of package-lock.json that are not
// for development alone.
import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";

const RULE = `\n\n${"-".repeat(72)}\n\n`;

/** @param {string} home @returns {string} */
export function licences(home) {
  const lock = JSON.parse(readFileSync(join(home, "package-lock.json"), "utf8"));
  const notices = Object.entries(lock.packages)
    .filter(([where, { dev }]) => where !== "" && !dev && !where.includes("/@types/"))
    .map(([where]) => noticeOf(join(home, where)));
  return `Packages in Strongroom's page, and their licences.${RULE}${[...new Set(notices)].sort().join(RULE)}\n`;
}

/** @param {string} directory */
function noticeOf(directory) {
  const { name, version, license, homepage } = JSON.parse(
    readFileSync(join(directory, "package.json"), "utf8"),
  );
  const texts = noticesIn(directory).map((file) => readFileSync(file, "utf8").trim());
  // Who has a program under this licence is told where its source is (MPL 2.0, 3.2).
  const source = String(license).startsWith("MPL") ? [`Its source: ${homepage}`] : [];
  return [`${name} ${version} (${license})`, ...source, ...texts].join("\n\n");
}

/** Folders in which a package keeps what it has from others, with their licences. */
const ALSO_IN = ["docs", "vendor"];

/**
 * The notices in a folder, and in those below it that may have some.
 * @param {string} directory
 * @returns {string[]}
 */
function noticesIn(directory) {
  const entries = readdirSync(directory, { withFileTypes: true }).sort((a, b) =>
    a.name < b.name ? -1 : 1,
  );
  const isVendor = basename(directory) === "vendor";
  return entries.flatMap((entry) => {
    const path = join(directory, entry.name);
    if (entry.isDirectory()) return isVendor || ALSO_IN.includes(entry.name) ? noticesIn(path) : [];
    return /^(licen[cs]e|notice)/i.test(entry.name) ? [path] : [];
  });
}
