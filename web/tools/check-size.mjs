// Fails if what a first visit loads is larger, compressed, than the page may be.
import { readFileSync } from "node:fs";
import { brotliCompressSync, gzipSync } from "node:zlib";

const FIRST_LOAD_MAX_BYTES = 250_000;
const dist = new URL("../dist/", import.meta.url);
const index = readFileSync(new URL("index.html", dist), "utf8");
const assets = [...index.matchAll(/(?:src|href)="\/(assets\/[^"]+)"/g)].map(
  ([, name = ""]) => name,
);
const loaded = ["index.html", ...assets];
let [gzip, brotli] = [0, 0];
for (const name of loaded) {
  const bytes = readFileSync(new URL(name, dist));
  gzip += gzipSync(bytes).length;
  brotli += brotliCompressSync(bytes).length;
}
console.log(`first load: ${loaded.length} files, ${gzip} bytes with gzip, ${brotli} with Brotli`);
if (gzip > FIRST_LOAD_MAX_BYTES) {
  console.error(`that is more than ${FIRST_LOAD_MAX_BYTES} bytes; load a part of it lazily`);
  process.exit(1);
}
