// Fails if a package of package-lock.json does not take Debian's Node.
import { readFileSync } from "node:fs";
import semver from "semver";

const DEBIAN_12 = "18.20.4";
const lock = JSON.parse(readFileSync(new URL("../package-lock.json", import.meta.url), "utf8"));
const refusing = Object.entries(lock.packages).filter(
  ([, { engines }]) => engines?.node && !semver.satisfies(DEBIAN_12, engines.node),
);
for (const [where, { version, engines }] of refusing) {
  console.error(`${where} ${version} takes Node ${engines.node}, and Debian 12 has ${DEBIAN_12}`);
}
process.exit(refusing.length === 0 ? 0 : 1);
