// A VM with a shell on its serial line, from the files that scripts/build-guest makes.
import { copyFileSync, existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const FILES =
  process.env["STRONGROOM_GUEST_DIR"] ??
  fileURLToPath(new URL("../../target/guest", import.meta.url));
const ARGUMENTS =
  "console=ttyS0 quiet loglevel=0 panic=-1 mitigations=off nokaslr cryptomgr.notests audit=0 lsm= tsc=reliable no_timer_check init_on_alloc=0 session=person";

export const HAS_GUEST = existsSync(join(FILES, "vmlinux"));

/**
 * Makes a VM that boots it.
 * @param {import("./serving.mjs").Serving} serving
 * @param {string} name
 * @param {object} [more] More fields of the request.
 */
export async function makeGuest(serving, name, more = {}) {
  const boot = join(serving.home, "hostd/boot");
  mkdirSync(boot, { recursive: true });
  for (const file of ["vmlinux", "initramfs.cpio"])
    copyFileSync(join(FILES, file), join(boot, file));
  await serving.does("POST", "/v1/vms", {
    name,
    memory_bytes: 256 * 1024 ** 2,
    disks: [{ size_bytes: 8 * 1024 ** 2 }],
    nics: [],
    machine: "pc",
    vnc: true,
    boot: {
      type: "kernel",
      kernel: join(boot, "vmlinux"),
      initrd: join(boot, "initramfs.cpio"),
      arguments: ARGUMENTS,
    },
    ...more,
  });
}
