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

/** Whether an answer, named by its operation, is to be asked for again after a request. */
export function isChangedBy(answer: string, operation: OperationId): boolean {
  // What is gone is not asked for: its screen is about to close.
  if (/_(delete|remove)$/.test(operation) && /_(show|scan)$/.test(answer)) return false;
  return objectsChangedBy(operation).some((object) => isOf(answer, object));
}

/** Asks again for what requests have changed, without waiting for events about it. */
export function askAgain(cache: QueryClient, operations: readonly OperationId[]): void {
  void cache.invalidateQueries({
    predicate: ({ queryKey }) =>
      queryKey[0] === "task_list" ||
      operations.some((operation) => isChangedBy(String(queryKey[0]), operation)),
  });
}
