import { Problem } from "../api/problem";
import type { Query, QueryClient, QueryKey } from "@tanstack/react-query";
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

/** The kinds of the objects that a part of an operation's path names. */
const NAMED: Readonly<Record<string, Kind>> = {
  vm: "vm",
  volume: "volume",
  datastore: "datastore",
  policy: "policy",
  host: "host",
  task: "task",
  recipient: "recipient",
  group: "placement_group",
  network: "network",
};

/** The answers that any event may change. */
function listsOf({ kind, object }: StrongroomEvent): readonly Answer[] {
  const also: Answer[] = ["event_list"];
  if (kind.startsWith("task.")) also.push("task_list", "task_show");
  if (kind.startsWith("alarm.")) also.push("alarm_list");
  return [...LISTS[object.kind], ...also];
}

/** The objects that a request names, by name or id. */
function namedBy(key: QueryKey): readonly { kind: Kind; named: string }[] {
  const [, request] = key as [string, { path?: Record<string, string> } | undefined];
  return Object.entries(request?.path ?? {}).flatMap(([part, named]) => {
    const kind = NAMED[part];
    return kind === undefined ? [] : [{ kind, named }];
  });
}

export function isNotFound(error: unknown): boolean {
  return error instanceof Problem && error.code === "not_found";
}

/** Asks again for what events have changed, of the answers that somebody looks at. */
export class Refresher {
  readonly #operations = new Set<string>();
  /** What has become of objects that events were about, by kind and name, and by id. */
  readonly #objects = new Map<string, "changed" | "gone">();
  #isWaiting = false;

  constructor(private readonly cache: QueryClient) {}

  event(event: StrongroomEvent): void {
    for (const operation of listsOf(event)) this.#operations.add(operation);
    const { kind, id, name } = event.object;
    const gone = event.gone ?? [];
    const isGone = typeof id === "string" && gone.includes(id);
    // The name of one that is gone may be another one's in a later event.
    this.#objects.set(`${kind} ${name}`, isGone ? "gone" : "changed");
    if (typeof id === "string") this.#objects.set(id, "changed");
    for (const one of gone) this.#objects.set(one, "gone");
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
    const objects = new Map(this.#objects);
    this.#operations.clear();
    this.#objects.clear();
    const became = ({ kind, named }: { kind: Kind; named: string }) =>
      objects.get(named) ?? objects.get(`${kind} ${named}`);
    const isAbout = ({ queryKey }: Query, what: "changed" | "gone") =>
      namedBy(queryKey).some((object) => became(object) === what);
    for (const query of this.cache.getQueryCache().findAll()) {
      if (isAbout(query, "gone")) becomeGone(query);
    }
    void this.cache.invalidateQueries({
      predicate: (query) => {
        const operation = String(query.queryKey[0]);
        // What was not there is there now, or else it is not asked for.
        if (isNotFound(query.state.error)) return isAbout(query, "changed");
        const isOfVm = operation.startsWith("vm_") && operation !== "vm_stats";
        return operations.has(operation) || (isOfVm && isAbout(query, "changed"));
      },
    });
  }
}

/** Gives a query the answer that the server would give, which need not be asked. */
function becomeGone(query: Query): void {
  void query.cancel({ silent: true });
  query.setState({
    status: "error",
    fetchStatus: "idle",
    error: new Problem("not_found", "it is not there any more"),
    errorUpdatedAt: Date.now(),
  });
}
