import type { ReactNode } from "react";
import type { Problem } from "../api/problem";
import { count } from "../lib/units";
import { Note, ProblemNote, Waiting } from "./Notes";

/** An answer with a page of a list, and what became of it. */
export interface Asked<Row> {
  data: { items: readonly Row[]; next?: string | null; total: number } | undefined;
  error: Problem | null;
  isPending: boolean;
  refetch: () => Promise<unknown>;
}

interface Props<Row> {
  asked: Asked<Row>;
  /** What is shown if there is none. */
  empty: ReactNode;
  lines?: number;
  children: (rows: readonly Row[]) => ReactNode;
}

/** The rows of a list, or why they are not there. */
export function Listed<Row>({ asked, empty, lines = 4, children }: Props<Row>) {
  const { data, error, isPending, refetch } = asked;
  return (
    <>
      {error === null ? null : <ProblemNote problem={error} retry={() => void refetch()} />}
      {isPending && error === null ? <Waiting lines={lines} /> : null}
      {data?.items.length === 0 ? empty : null}
      {data === undefined || data.items.length === 0 ? null : children(data.items)}
      {typeof data?.next === "string" ? (
        <Note>
          The first {count(data.items.length)} of {count(data.total)} are shown; the command line
          lists all.
        </Note>
      ) : null}
    </>
  );
}
