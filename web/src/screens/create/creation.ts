import type { RequestOf } from "../../api/types";
import { commandSize } from "../../lib/units";
import { diskSizes, NO_NETWORK, tagsOf, type Draft } from "./draft";
import { bytesOf } from "../../ui/SizeField";
import { action, type Action } from "../../actions/action";
import { backendOf } from "../../actions/network";

type Body = NonNullable<RequestOf<"vm_create">["body"]>;

function nicsOf(network: string): NonNullable<Body["nics"]> {
  if (network === NO_NETWORK) return [];
  return [{ backend: backendOf(network) }];
}

const given = (name: string, value: string) => (value === "" ? {} : { [name]: value });
const option = (name: string, value: string) => (value === "" ? [] : [name, value]);

/** The creation of the VM that a draft without faults describes. */
export function createVm(draft: Draft): Action {
  const disks = diskSizes(draft);
  const memory = bytesOf(draft.memory) ?? 0;
  const tags = tagsOf(draft.tags);
  const tagged = draft.hasTags && draft.isSealed;
  const body: Body = {
    name: draft.name,
    cpus: { sockets: 1, cores: Number(draft.cpus), threads: 1 },
    memory_bytes: memory,
    disks: disks.map(({ size, isSwap }) => ({
      size_bytes: size,
      ...(isSwap ? { kind: "swap" as const } : {}),
      ...(tagged && !isSwap ? { integrity: true } : {}),
    })),
    encryption: draft.isSealed ? given("provider", draft.provider) : { encrypted: false },
    nics: nicsOf(draft.network),
    ...(draft.isUefi ? { firmware: "uefi" as const } : {}),
    ...(draft.hasTpm ? { tpm: true } : {}),
    ...(draft.cdrom === "" ? {} : { cdrom: { type: "image" as const, path: draft.cdrom } }),
    ...(draft.restart === "never" ? { restart: draft.restart } : {}),
    ...(tags.length === 0 ? {} : { tags: [...tags] }),
    ...given("notes", draft.notes),
    ...given("folder", draft.folder),
    ...given("policy", draft.policy),
    ...given("host", draft.host),
    ...given("datastore", draft.datastore),
  };
  return action(`Create ${draft.name}`, "vm_create", { body }, [
    ...["vm", "create", draft.name, "--cpus", draft.cpus, "--memory", commandSize(memory)],
    ...disks.flatMap(({ size, isSwap }) => [isSwap ? "--swap" : "--disk", commandSize(size)]),
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
    ...option("--host", draft.host),
    ...option("--datastore", draft.datastore),
  ]);
}
