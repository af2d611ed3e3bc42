import { call } from "../api/call";
import { asProblem, type Problem } from "../api/problem";
import type { StrongroomEvent, VmSummary } from "../api/types";
import { Store } from "../lib/store";

/** The first ones are more than a window shows, and there at once. */
const FIRST_PAGE = 100;
const PAGE = 1_000;
/** Beyond this many changed VMs at once, the whole list is asked for again. The API takes no more. */
const SINGLY_MAX = 100;
const TOGETHER_MS = 1_000;
const WHOLE_EVERY_MS = 10_000;

/** All VMs that the caller may view, in the order of their names. */
export interface Estate {
  readonly vms: readonly VmSummary[];
  /** How many there are, of which some may still be on their way. */
  readonly total: number;
  readonly isComplete: boolean;
  readonly problem: Problem | undefined;
}

const EMPTY: Estate = { vms: [], total: 0, isComplete: false, problem: undefined };
/** The VMs for screens, kept up to date by events: at first all pages, then what has changed. */
const estate = new Store(EMPTY);
let loading: Promise<void> | undefined;
let loadedAtMs = 0;
let timer: ReturnType<typeof setTimeout> | undefined;
const changed = new Set<string>();

function become(next: Partial<Estate>): void {
  estate.become({ ...estate.state(), ...next });
}

/** Begins to read all VMs with the first who looks at them. */
export const vms = {
  state: estate.state,
  subscribe: (listener: () => void): (() => void) => {
    const unsubscribe = estate.subscribe(listener);
    if (!estate.state().isComplete) void load();
    return unsubscribe;
  },
};

/** Asks again for the VM that an event is about, with others. */
export function vmChanged({ object }: StrongroomEvent): void {
  if (object.kind !== "vm" || typeof object.id !== "string") return;
  changed.add(object.id);
  timer ??= setTimeout(() => void refresh(), TOGETHER_MS);
}

/** Asks again for all, if somebody looks at them. */
export function reloadVms(): void {
  if (estate.hasListeners) void load();
  else estate.become(EMPTY);
}

export function forgetVms(): void {
  estate.become(EMPTY);
}

function load(): Promise<void> {
  loading ??= loadAll()
    .then(() => {
      loadedAtMs = Date.now();
    })
    .catch((error: unknown) => become({ problem: asProblem(error) }))
    .finally(() => {
      loading = undefined;
    });
  return loading;
}

async function loadAll(): Promise<void> {
  const isFirst = !estate.state().isComplete;
  const found: VmSummary[] = [];
  let cursor: string | undefined;
  do {
    const limit = isFirst && cursor === undefined ? FIRST_PAGE : PAGE;
    const query = { limit, ...(cursor === undefined ? {} : { cursor }) };
    const page = await call("vm_list", { query });
    found.push(...page.items);
    cursor = page.next ?? undefined;
    // The first time, what has come is shown; later, nothing disappears meanwhile.
    if (isFirst) become({ vms: [...found], total: page.total, problem: undefined });
  } while (cursor !== undefined);
  become({ vms: found, total: found.length, isComplete: true, problem: undefined });
}

async function refresh(): Promise<void> {
  timer = undefined;
  if (!estate.hasListeners) {
    changed.clear();
    become({ isComplete: false });
    return;
  }
  if (changed.size > SINGLY_MAX) {
    const waitMs = loadedAtMs + WHOLE_EVERY_MS - Date.now();
    if (waitMs > 0) {
      timer = setTimeout(() => void refresh(), waitMs);
      return;
    }
    changed.clear();
    await load();
    return;
  }
  const ids = [...changed];
  changed.clear();
  try {
    // A list never answers that a VM is not there: it leaves it out.
    const { items } = await call("vm_list", { query: { ids: ids.join(","), limit: SINGLY_MAX } });
    become(withChanges(estate.state().vms, ids, items));
  } catch {
    // The next event, or the next time that all are read, says how they are.
  }
}

/** The list with these VMs as they are now, in the order of names; those that are not found are gone. */
export function withChanges(
  before: readonly VmSummary[],
  ids: readonly string[],
  found: readonly VmSummary[],
): Pick<Estate, "vms" | "total"> {
  const asked = new Set(ids);
  const kept = before.filter(({ id }) => !asked.has(id));
  const next = [...kept, ...found].sort((one, other) => (one.name < other.name ? -1 : 1));
  return { vms: next, total: next.length };
}
