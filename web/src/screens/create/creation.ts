import type { RequestOf } from "../../api/types";
import { commandSize } from "../../lib/units";
import { diskSizes, NO_NETWORK, seedOf, tagsOf, type Draft } from "./draft";
import { bytesOf } from "../../ui/SizeField";
import { action, type Action } from "../../actions/action";
import { backendOf } from "../../actions/network";
import type { Task } from "../../api/types";
import { metaData, sendSeed } from "../../upload/actions";
import { beginUpload } from "../../upload/uploads";

type Body = NonNullable<RequestOf<"vm_create">["body"]>;

function nicsOf(network: string): NonNullable<Body["nics"]> {
  if (network === NO_NETWORK) return [];
  return [{ backend: backendOf(network) }];
}

const given = (name: string, value: string) => (value === "" ? {} : { [name]: value });
const option = (name: string, value: string) => (value === "" ? [] : [name, value]);

/** Sends what a new VM begins with, as its task awaits it. */
export function sendContents(draft: Draft, task: Task): void {
  const vm = task.object.name;
  if (draft.image !== undefined) {
    const { file, format = "auto" } = draft.image;
    beginUpload({ vm, disk: "disk0", image: file, name: file.name, format, task: task.id });
  }
  const seed = seedOf(draft);
  const { id } = task.object;
  if (seed === undefined || typeof id !== "string") return;
  sendSeed(vm, { ...seed, metaData: metaData({ id, name: vm }) }, task.id);
}

/** The creation of the VM that a draft without faults describes. */
export function createVm(draft: Draft): Action {
  const disks = diskSizes(draft);
  const memory = bytesOf(draft.memory) ?? 0;
  const maxCpus = draft.maxCpus.trim() === "" ? undefined : Number(draft.maxCpus);
  const maxMemory = bytesOf(draft.maxMemory);
  const processor = draft.processor.trim();
  const tags = tagsOf(draft.tags);
  const seed = seedOf(draft);
  const tagged = draft.hasTags && draft.isSealed;
  const body: Body = {
    name: draft.name,
    cpus: { sockets: 1, cores: Number(draft.cpus), threads: 1 },
    memory_bytes: memory,
    ...(maxCpus === undefined && maxMemory === undefined
      ? {}
      : {
          growth: {
            ...(maxCpus === undefined ? {} : { max_cpus: maxCpus }),
            ...(maxMemory === undefined ? {} : { max_memory_bytes: maxMemory }),
          },
        }),
    disks: disks.map(({ size, isSwap }, index) => ({
      size_bytes: size,
      ...(index === 0 && draft.image !== undefined ? { fill: true } : {}),
      ...(isSwap ? { kind: "swap" as const } : {}),
      ...(draft.frontend === "vhost_user" ? {} : { frontend: draft.frontend }),
      ...(tagged && !isSwap ? { integrity: true } : {}),
    })),
    encryption: draft.isSealed ? given("provider", draft.provider) : { encrypted: false },
    nics: nicsOf(draft.network),
    ...(draft.isUefi ? { firmware: "uefi" as const } : {}),
    ...(draft.hasTpm ? { tpm: true } : {}),
    ...(draft.cdrom === "" ? {} : { cdrom: { type: "image" as const, path: draft.cdrom } }),
    ...(seed === undefined ? {} : { seed: true, fill_seed: true }),
    ...(draft.restart === "never" ? { restart: draft.restart } : {}),
    ...(tags.length === 0 ? {} : { tags: [...tags] }),
    ...given("notes", draft.notes),
    ...given("folder", draft.folder),
    ...given("policy", draft.policy),
    ...given("placement_group", draft.placementGroup),
    ...given("processor", processor),
    ...given("host", draft.host),
    ...given("datastore", draft.datastore),
  };
  return action(`Create ${draft.name}`, "vm_create", { body }, [
    ...["vm", "create", draft.name, "--cpus", draft.cpus, "--memory", commandSize(memory)],
    ...option("--max-cpus", maxCpus === undefined ? "" : String(maxCpus)),
    ...option("--max-memory", maxMemory === undefined ? "" : commandSize(maxMemory)),
    ...option("--processor", processor),
    ...disks.flatMap(({ size, isSwap }) => [isSwap ? "--swap" : "--disk", commandSize(size)]),
    ...option("--image", draft.image?.file.name ?? ""),
    ...(draft.image === undefined ? [] : ["--format", draft.image.format ?? "auto"]),
    ...option("--user-data", seed === undefined ? "" : "user-data.yaml"),
    ...option("--network-config", seed?.networkConfig === undefined ? "" : "network.yaml"),
    ...(draft.frontend === "vhost_user" ? [] : ["--frontend", draft.frontend.replace("_", "-")]),
    tagged && "--integrity",
    !draft.isSealed && "--unencrypted",
    ...(draft.isSealed ? option("--key-provider", draft.provider) : []),
    ...["--net", draft.network === NO_NETWORK ? "none" : draft.network],
    draft.isUefi && "--uefi",
    draft.hasTpm && "--tpm",
    ...option("--cdrom", draft.cdrom),
    ...(draft.restart === "never" ? ["--restart", "never"] : []),
    ...tags.flatMap((tag) => ["--tag", tag]),
    ...option("--notes", draft.notes),
    ...option("--folder", draft.folder),
    ...option("--policy", draft.policy),
    ...option("--placement-group", draft.placementGroup),
    ...option("--host", draft.host),
    ...option("--datastore", draft.datastore),
  ]);
}
