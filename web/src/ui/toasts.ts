import type { Problem } from "../api/problem";
import { Store } from "../lib/store";

export interface Toast {
  id: number;
  tone: "good" | "bad";
  text: string;
  problem?: Problem;
  /** Where to see more. */
  link?: { to: string; label: string };
  /** The command line that does the same. */
  command?: string;
}

const KEPT_MS = 6_000;
const KEPT_BAD_MS = 20_000;
const SHOWN_MAX = 4;

/** Short messages about what has just been done. */
export const toasts = new Store<readonly Toast[]>([]);
let next = 1;

export function say(toast: Omit<Toast, "id">): void {
  const id = next;
  next += 1;
  toasts.become([...toasts.state(), { ...toast, id }].slice(-SHOWN_MAX));
  setTimeout(() => dismiss(id), toast.tone === "bad" ? KEPT_BAD_MS : KEPT_MS);
}

export function dismiss(id: number): void {
  toasts.become(toasts.state().filter((toast) => toast.id !== id));
}
