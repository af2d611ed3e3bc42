import { keepPreviousData, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { asProblem, type Problem } from "./problem";
import { call } from "./call";
import type { AnswerOf, OperationId, RequestOf } from "./types";

export interface Asking {
  enabled?: boolean;
  everyMs?: number;
  /** Shows the former answer while another one is on its way. */
  keep?: boolean;
}

/** The name of an answer in the cache: its operation, then its request. */
export function keyOf<Id extends OperationId>(operation: Id, request: RequestOf<Id>) {
  return [operation, request] as const;
}

/** The answer of an operation that changes nothing, kept up to date by events. */
export function useAsk<Id extends OperationId>(
  operation: Id,
  request: RequestOf<Id>,
  { enabled = true, everyMs, keep = false }: Asking = {},
): UseQueryResult<AnswerOf<Id>, Problem> {
  return useQuery<AnswerOf<Id>, Problem>({
    queryKey: keyOf(operation, request),
    queryFn: ({ signal }) =>
      call(operation, request, { signal }).catch((error: unknown) => {
        throw asProblem(error);
      }),
    enabled,
    ...(everyMs === undefined
      ? {}
      : {
          // What is gone is not asked for again and again.
          refetchInterval: ({ state }: { state: { error: Problem | null } }) =>
            state.error?.code === "not_found" ? false : everyMs,
        }),
    ...(keep ? { placeholderData: keepPreviousData } : {}),
  });
}
