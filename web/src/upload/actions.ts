import { action, type Action } from "../actions/action";
import type { ChosenImage } from "./format";
import type { SeedFiles } from "./seed";
import { seedVolume } from "./seed";
import { beginUpload } from "./uploads";

/** The name of the disk with the seed of cloud-init. */
export const SEED = "seed";
const USER_DATA = "user-data.yaml";

/** Fills a disk with an image, or goes on with a task that awaits it. */
export function importImage(
  vm: string,
  disk: string,
  { file, format }: ChosenImage,
  task: string | undefined,
): Action {
  const written = format ?? "auto";
  return {
    ...action(
      `Fill ${disk} of ${vm} with ${file.name}`,
      "vm_import_disk",
      { path: { vm, disk }, body: { ticket: "", format: written } },
      ["vm", "disk", "import", vm, disk, file.name, "--format", written],
      ["ticket"],
    ),
    send: () =>
      beginUpload({
        vm,
        disk,
        image: file,
        name: file.name,
        format: written,
        ...(task === undefined ? {} : { task }),
      }).begun,
  };
}

/** Replaces the seed of cloud-init of a VM that is off. */
export function replaceSeed(vm: string, files: SeedFiles, hasOwnMeta: boolean): Action {
  return {
    ...action(
      `Replace the seed of ${vm}`,
      "vm_import_disk",
      { path: { vm, disk: SEED }, body: { ticket: "", format: "raw" } },
      [
        ...["vm", "seed", vm, "--user-data", USER_DATA],
        ...(hasOwnMeta ? ["--meta-data", "meta-data.yaml"] : []),
        ...(files.networkConfig === undefined ? [] : ["--network-config", "network.yaml"]),
      ],
      ["ticket"],
    ),
    send: () => sendSeed(vm, files).begun,
  };
}

export function sendSeed(vm: string, files: SeedFiles, task?: string) {
  return beginUpload({
    vm,
    disk: SEED,
    image: seedVolume(files),
    name: "the seed",
    format: "raw",
    ...(task === undefined ? {} : { task }),
  });
}

/** The meta-data of a VM as the command line makes it. */
export function metaData({ id, name }: { id: string; name: string }): string {
  return `instance-id: ${id}\nlocal-hostname: ${name}\n`;
}
