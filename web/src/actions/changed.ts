import type { QueryClient } from "@tanstack/react-query";
import type { OperationId } from "../api/types";

/** Objects whose changes no event reports, or which are part of the answers about others. */
const TOGETHER: readonly (readonly string[])[] = [
  [
    "access",
    "emergency",
    "folder",
    "grant",
    "identity_provider",
    "role",
    "session",
    "token",
    "user",
  ],
  ["balance", "host", "hosts"],
  ["datastore"],
  ["network"],
  ["placement_group"],
  ["policy"],
  ["recipient"],
];

function isOf(operation: string, object: string): boolean {
  return operation.startsWith(`${object}_`);
}

/** The objects whose answers an operation changes. */
export function objectsChangedBy(operation: OperationId): readonly string[] {
  return TOGETHER.find((objects) => objects.some((object) => isOf(operation, object))) ?? [];
}

/** Asks again for what a request has changed, without waiting for an event about it. */
export function askAgain(cache: QueryClient, operations: readonly OperationId[]): void {
  const objects = new Set(operations.flatMap(objectsChangedBy));
  void cache.invalidateQueries({
    predicate: ({ queryKey }) =>
      [...objects].some((object) => isOf(String(queryKey[0]), object)) ||
      queryKey[0] === "task_list",
  });
}
