import { limitsOf, numberFault, textFault } from "../../api/limits";
import { LIMITS } from "../../api/generated/limits";
import { USER_NETWORK } from "../../actions/network";
import type { Schemas } from "../../api/types";
import { leastDiskBytes, type ChosenImage } from "../../upload/format";
import { SEED_FILE_BYTES_MAX, type SeedFiles } from "../../upload/seed";
import { bytes } from "../../lib/units";
import { bytesOf, noSize, sizeFault, type Size } from "../../ui/SizeField";

export interface DraftDisk {
  key: number;
  size: Size;
  isSwap: boolean;
}

/** A VM as it is being described. Texts that are empty are left out of the request. */
export interface Draft {
  name: string;
  notes: string;
  tags: string;
  folder: string;
  policy: string;
  host: string;
  datastore: string;
  placementGroup: string;
  cpus: string;
  memory: Size;
  /** What it may have while it runs; empty: what it was started with. */
  maxCpus: string;
  maxMemory: Size;
  /** As the policy says, or the host's, if it is empty. */
  processor: string;
  isUefi: boolean;
  hasTpm: boolean;
  disks: readonly DraftDisk[];
  frontend: Schemas["Frontend"];
  /** What disk 0 begins with. */
  image: ChosenImage | undefined;
  /** For cloud-init; there is no seed without user data. */
  userData: string;
  networkConfig: string;
  isSealed: boolean;
  provider: string;
  hasTags: boolean;
  /** A network's name, `user`, or none. */
  network: string;
  cdrom: string;
  restart: Schemas["RestartPolicy"];
}

export const NO_NETWORK = "";

export const EMPTY: Draft = {
  name: "",
  notes: "",
  tags: "",
  folder: "",
  policy: "",
  host: "",
  datastore: "",
  placementGroup: "",
  cpus: "2",
  memory: { amount: "2", unit: "GiB" },
  maxCpus: "",
  maxMemory: noSize,
  processor: "",
  isUefi: false,
  hasTpm: false,
  disks: [{ key: 0, size: { amount: "20", unit: "GiB" }, isSwap: false }],
  frontend: "vhost_user",
  image: undefined,
  userData: "",
  networkConfig: "",
  isSealed: true,
  provider: "",
  hasTags: false,
  network: USER_NETWORK,
  cdrom: "",
  restart: "on_failure",
};

export type Faults = Partial<Record<keyof Draft, string>>;

export function tagsOf(text: string): readonly string[] {
  return text.split(/[\s,]+/).filter((tag) => tag !== "");
}

/** What is wrong with each field, by the limits that the API states. */
export function faultsOf(draft: Draft): Faults {
  const disk = draft.disks
    .map(({ size }) => sizeFault(limitsOf("AddDisk", "size_bytes"), size))
    .find((fault) => fault !== undefined);
  const tag = tagsOf(draft.tags)
    .map((each) => textFault(LIMITS.Tag[""], each))
    .find((fault) => fault !== undefined);
  const found: Record<string, string | undefined> = {
    name: textFault(limitsOf("CreateVm", "name"), draft.name),
    notes: textFault(limitsOf("CreateVm", "notes"), draft.notes),
    tags: tag,
    cpus: numberFault(limitsOf("Cpus", "cores"), Number(draft.cpus)),
    memory: sizeFault(limitsOf("CreateVm", "memory_bytes"), draft.memory),
    maxCpus: maxCpusFault(draft),
    maxMemory: maxMemoryFault(draft),
    processor: textFault(limitsOf("CreateVm", "processor"), draft.processor.trim()),
    disks: disk,
    image: imageFault(draft),
    userData: seedFault(draft.userData),
    networkConfig:
      draft.networkConfig !== "" && draft.userData === ""
        ? "Only with user data."
        : seedFault(draft.networkConfig),
    cdrom:
      draft.cdrom === "" || draft.cdrom.startsWith("/") ? undefined : "A path that begins with /.",
  };
  return Object.fromEntries(Object.entries(found).filter(([, fault]) => fault !== undefined));
}

function maxCpusFault({ cpus, maxCpus }: Draft): string | undefined {
  if (maxCpus.trim() === "") return undefined;
  const most = Number(maxCpus);
  if (most < Number(cpus)) return `At least the ${cpus} that it is started with.`;
  return numberFault(limitsOf("Growth", "max_cpus"), most);
}

function maxMemoryFault({ memory, maxMemory }: Draft): string | undefined {
  if (maxMemory.amount === "") return undefined;
  const fault = sizeFault(limitsOf("CreateVm", "memory_bytes"), maxMemory);
  const [least, most] = [bytesOf(memory) ?? 0, bytesOf(maxMemory) ?? 0];
  return (
    fault ?? (most < least ? `At least the ${bytes(least)} that it is started with.` : undefined)
  );
}

function imageFault({ image, disks }: Draft): string | undefined {
  if (image === undefined) return undefined;
  if (image.format === undefined) return "Say which format the image has.";
  const [first] = disks;
  if (first === undefined || first.isSwap) return "An image takes a first disk that is no swap.";
  const least = leastDiskBytes(image);
  const size = bytesOf(first.size) ?? 0;
  return least !== undefined && least > size
    ? `Its disk has ${bytes(least)}: make disk 0 as large.`
    : undefined;
}

function seedFault(text: string): string | undefined {
  const isLong = new TextEncoder().encode(text).length > SEED_FILE_BYTES_MAX;
  return isLong ? `At most ${bytes(SEED_FILE_BYTES_MAX)}.` : undefined;
}

/** The files of the seed but the meta-data, which the VM's id is in. */
export function seedOf({
  userData,
  networkConfig,
}: Draft): Omit<SeedFiles, "metaData"> | undefined {
  if (userData === "") return undefined;
  return { userData, ...(networkConfig === "" ? {} : { networkConfig }) };
}

/** What a policy demands of a draft, in words. */
export function demandsOf(rules: Schemas["PolicyRules"] | undefined): readonly string[] {
  if (rules === undefined) return [];
  const demands = [
    rules.encryption_required === true ? "encryption" : "",
    typeof rules.key_provider === "string" ? `keys of ${rules.key_provider}` : "",
    rules.tpm_required === true ? "a TPM" : "",
    rules.integrity_required === true ? "integrity tags" : "",
    rules.thick_required === true ? "disks that take their whole space" : "",
    typeof rules.processor === "string" ? `the processor ${rules.processor}` : "",
  ];
  return demands.filter((demand) => demand !== "");
}

/** The draft as its policy makes it. */
export function underPolicy(draft: Draft, rules: Schemas["PolicyRules"] | undefined): Draft {
  if (rules === undefined) return draft;
  return {
    ...draft,
    isSealed: draft.isSealed || rules.encryption_required === true,
    hasTpm: draft.hasTpm || rules.tpm_required === true,
    hasTags: draft.hasTags || rules.integrity_required === true,
  };
}

export function diskSizes(draft: Draft): readonly { size: number; isSwap: boolean }[] {
  return draft.disks.map(({ size, isSwap }) => ({ size: bytesOf(size) ?? 0, isSwap }));
}
