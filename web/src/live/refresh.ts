import { Problem } from "../api/problem";
import type { QueryClient, QueryKey } from "@tanstack/react-query";
import type { ObjectRef, OperationId, StrongroomEvent } from "../api/types";

/** Events of a burst are answered together, this long after the first. */
export const TOGETHER_MS = 1_000;

type Kind = ObjectRef["kind"];

/** An answer by its operation, or all disks of the site, which are read as a whole. */
type Answer = OperationId | "volume_list_all";

/** The answers that an object of this kind is part of. */
const LISTS: Readonly<Record<Kind, readonly Answer[]>> = {
  vm: ["placement_group_show", "policy_show", "balance_show", "volume_list", "volume_show"],
  volume: ["volume_list", "volume_list_all", "volume_show"],
  datastore: ["datastore_list", "datastore_show", "datastore_capacity", "datastore_scan"],
  policy: ["policy_list", "policy_show"],
  key_provider: ["key_provider_list"],
  host: ["host_list", "host_show", "balance_show", "datastore_list"],
  task: ["task_list"],
  control: ["inventory_backup"],
  recipient: ["recipient_list", "recipient_show"],
  placement_group: ["placement_group_list", "placement_group_show"],
  network: ["network_list", "network_show"],
};

/** The answers that any event may change. */
function listsOf({ kind, object }: StrongroomEvent): readonly Answer[] {
  const also: Answer[] = ["event_list"];
  if (kind.startsWith("task.")) also.push("task_list", "task_show");
  if (kind.startsWith("alarm.")) also.push("alarm_list");
  return [...LISTS[object.kind], ...also];
}

function isOfVm(key: QueryKey, vms: ReadonlySet<string>): boolean {
  const [operation, request] = key as [string, { path?: { vm?: string } } | undefined];
  const vm = request?.path?.vm;
  return operation.startsWith("vm_") && operation !== "vm_stats" && vm !== undefined && vms.has(vm);
}

/** Asks again for what events have changed, of the answers that somebody looks at. */
export class Refresher {
  readonly #operations = new Set<string>();
  readonly #vms = new Set<string>();
  #isWaiting = false;

  constructor(private readonly cache: QueryClient) {}

  event(event: StrongroomEvent): void {
    for (const operation of listsOf(event)) this.#operations.add(operation);
    const { kind, id, name } = event.object;
    if (kind === "vm") {
      this.#vms.add(name);
      if (typeof id === "string") this.#vms.add(id);
    }
    if (this.#isWaiting) return;
    this.#isWaiting = true;
    setTimeout(() => this.#flush(), TOGETHER_MS);
  }

  everything(): void {
    void this.cache.invalidateQueries();
  }

  #flush(): void {
    this.#isWaiting = false;
    const operations = new Set(this.#operations);
    const vms = new Set(this.#vms);
    this.#operations.clear();
    this.#vms.clear();
    void this.cache.invalidateQueries({
      predicate: ({ queryKey, state }) =>
        operations.has(String(queryKey[0])) ||
        isOfVm(queryKey, vms) ||
        // What was not there may be there now.
        (state.error instanceof Problem && state.error.code === "not_found"),
    });
  }
}
