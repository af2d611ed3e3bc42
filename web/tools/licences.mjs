// The licences of the packages that the page is made of: those of package-lock.json that are not
// for development alone.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

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
  const { name, version, license } = JSON.parse(
    readFileSync(join(directory, "package.json"), "utf8"),
  );
  const files = readdirSync(directory)
    .filter((file) => /^(licen[cs]e|notice)/i.test(file))
    .sort();
  const texts = files.map((file) => readFileSync(join(directory, file), "utf8").trim());
  return [`${name} ${version} (${license})`, ...texts].join("\n\n");
}
