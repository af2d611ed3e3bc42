import type { Tone } from "../../ui/Status";

/** Whether secrets in a host's memory can reach one of its disks. */
export interface CryptoState {
  tone: Tone;
  word: string;
  /** What follows for VMs with encrypted disks. */
  meaning: string;
}

const STATES: Readonly<Record<string, CryptoState>> = {
  safe: {
    tone: "good",
    word: "Safe",
    meaning: "No memory can reach a disk, and its owner requires that. Encrypted VMs start here.",
  },
  prepared: {
    tone: "good",
    word: "Prepared",
    meaning:
      "No memory can reach a disk, but that is not required here. Encrypted VMs start; policies that demand safe hosts keep theirs away.",
  },
  incapable: {
    tone: "warning",
    word: "Leaks",
    meaning:
      "Memory can reach a disk in plain text. Encrypted VMs are refused if safety is required here, and start if it is only advised.",
  },
  "pending-incapable": {
    tone: "bad",
    word: "Began to leak",
    meaning:
      "Memory can reach a disk in plain text since encrypted VMs run here. They keep running, and none is started.",
  },
};

const UNKNOWN: CryptoState = {
  tone: "warning",
  word: "Unknown",
  meaning: "The host has not said whether its memory can reach a disk.",
};

export function cryptoState(name: string | null | undefined): CryptoState {
  return (typeof name === "string" ? STATES[name] : undefined) ?? UNKNOWN;
}
