import { useInfiniteQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { Link, useSearchParams } from "wouter";
import { call } from "../../api/call";
import { asProblem, type Problem } from "../../api/problem";
import type { Schemas } from "../../api/types";
import { addresses, addressOfObject } from "../../app/addresses";
import { count, moment, plural } from "../../lib/units";
import { sentence } from "../../lib/words";
import { Button } from "../../ui/Button";
import { SelectField, TextField } from "../../ui/Field";
import { Empty, Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { Prose } from "../../ui/Prose";
import { Mark, type Tone } from "../../ui/Status";
import { filterOf, newestFirst, nextPage, queryOf, SINCE, type Part } from "./pages";

type Entry = Schemas["AccessEntry"];
type Kind = Schemas["AccessKind"];
type Shape = "tick" | "cross" | "key" | "half" | "disc" | "ring" | "question" | "triangle";

/** Numbers of entries that a page covers; a search by name finds few in many. */
const PAGE = 200;
const PAGE_OF_SEARCH = 1_000;
const MS = 1_000;

const KINDS: Readonly<Record<Kind, readonly [Tone, Shape, string]>> = {
  signed_in: ["good", "tick", "Signed in"],
  sign_in_refused: ["bad", "cross", "Sign-in refused"],
  refused: ["bad", "triangle", "Refused"],
  ticket: ["notice", "key", "Guest data"],
  changed: ["notice", "disc", "Changed"],
  read: ["off", "ring", "Read"],
  removed: ["warning", "half", "Entries removed"],
  unknown: ["warning", "question", "Unknown"],
};

/** The access log, the newest first; older pages come as they are scrolled to. */
export function LogTab() {
  const [query, setQuery] = useSearchParams();
  const filter = useMemo(() => filterOf(query), [query]);
  const [nowS] = useState(() => Math.floor(Date.now() / MS));
  const isSearch = filter.by !== "" || filter.since !== "";
  const size = isSearch ? PAGE_OF_SEARCH : PAGE;
  const of = {
    ...(filter.by === "" ? {} : { by: filter.by }),
    ...(filter.since === "" ? {} : { since_unix_seconds: nowS - Number(filter.since) }),
  };
  const log = useInfiniteQuery<
    Schemas["AccessLogPage"],
    Problem,
    Entries,
    readonly unknown[],
    Part | undefined
  >({
    queryKey: ["access_log", of],
    queryFn: ({ pageParam, signal }) =>
      call("access_log", { query: { ...of, ...(pageParam ?? { limit: size }) } }, { signal }).catch(
        (error: unknown) => {
          throw asProblem(error);
        },
      ),
    initialPageParam: undefined,
    getNextPageParam: (_last, pages, _lastPart, parts) => nextPage(pages, parts, size),
    select: ({ pages }) => ({
      entries: newestFirst(pages.map(({ items }) => items)),
      breaks: pages.flatMap(({ breaks = [] }) => breaks),
      total: pages[0]?.total ?? 0,
    }),
  });
  const { data, error, isPending, hasNextPage, isFetchingNextPage } = log;
  const shown = (data?.entries ?? []).filter(
    ({ kind }) => filter.kind === "" || kind === filter.kind,
  );
  const more = () => void log.fetchNextPage();

  return (
    <>
      <Filters
        key={filter.by}
        filter={filter}
        onChange={(next) => setQuery(queryOf(next), { replace: true })}
      />
      {data === undefined || data.breaks.length === 0 ? null : (
        <Note tone="bad" title="The chain is broken here">
          {data.breaks.map(({ id, reason }) => (
            <p key={id}>
              Entry {id}: {reason}
            </p>
          ))}
        </Note>
      )}
      <Panel
        title={
          data === undefined
            ? "Access log"
            : `${count(shown.length)} shown of ${plural(data.total, "entry", "entries")}`
        }
        isFlush
        aside={
          <Button icon="restart" isPending={log.isRefetching} onPress={() => void log.refetch()}>
            Read again
          </Button>
        }
      >
        {error === null ? null : <ProblemNote problem={error} retry={() => void log.refetch()} />}
        {isPending ? <Waiting lines={10} /> : null}
        {data !== undefined && shown.length === 0 ? (
          <Empty icon="audit" title="No entry matches">
            {hasNextPage
              ? "Look further back, or leave out a part of the filter."
              : "Nobody did that."}
          </Empty>
        ) : null}
        <ol className="lines log" aria-label="Entries, the newest first">
          {shown.map((entry) => (
            <li key={entry.id}>
              <EntryLine entry={entry} />
            </li>
          ))}
        </ol>
        {hasNextPage ? <More isBusy={isFetchingNextPage} onMore={more} /> : null}
        {data !== undefined && !hasNextPage && shown.length > 0 ? (
          <p className="panel-line soft">That is all.</p>
        ) : null}
      </Panel>
    </>
  );
}

interface Entries {
  entries: readonly Entry[];
  breaks: readonly Schemas["ChainBreak"][];
  total: number;
}

/** Asks for more when it comes into sight. */
function More({ isBusy, onMore }: { isBusy: boolean; onMore: () => void }) {
  const end = useRef<HTMLParagraphElement>(null);
  const ask = useRef(onMore);
  useEffect(() => {
    ask.current = onMore;
  });
  useEffect(() => {
    if (end.current === null || isBusy) return;
    const watch = new IntersectionObserver(
      ([seen]) => {
        if (seen?.isIntersecting === true) ask.current();
      },
      { rootMargin: "400px" },
    );
    watch.observe(end.current);
    return () => watch.disconnect();
  }, [isBusy]);
  return (
    <p className="panel-line" ref={end}>
      <Button isPending={isBusy} onPress={onMore}>
        Older entries
      </Button>
    </p>
  );
}

function EntryLine({ entry }: { entry: Entry }) {
  const { id, kind, by, from, operation, object, task, message, repeated, at_unix_ms } = entry;
  const [tone, shape, word] = KINDS[kind];
  const to = object === undefined || object === null ? undefined : addressOfObject(object);
  return (
    <div className="line">
      <span className="log-kind">
        <Mark tone={tone} shape={shape}>
          {word}
        </Mark>
      </span>
      <div className="line-words">
        <span>
          <strong>{by}</strong>
          {typeof from === "string" ? <span className="soft"> from {from}</span> : null}:{" "}
          <Prose text={sentence(message)} />
          {typeof repeated === "number" && repeated > 1 ? (
            <span className="soft"> ({count(repeated)} times)</span>
          ) : null}
        </span>
        <span className="small soft">
          <span className="number">{id}</span>
          {typeof operation === "string" ? (
            <>
              {" \u00b7 "}
              <code>{operation}</code>
            </>
          ) : null}
          {object === undefined || object === null ? null : (
            <>
              {" \u00b7 "}
              {to === undefined ? object.name : <Link href={to}>{object.name}</Link>}
            </>
          )}
          {typeof task === "string" ? (
            <>
              {" \u00b7 "}
              <Link href={addresses.task(task)}>its task</Link>
            </>
          ) : null}
        </span>
      </div>
      <time className="line-end" dateTime={new Date(at_unix_ms).toISOString()}>
        {moment(at_unix_ms)}
      </time>
    </div>
  );
}

function Filters({
  filter,
  onChange,
}: {
  filter: ReturnType<typeof filterOf>;
  onChange: (filter: ReturnType<typeof filterOf>) => void;
}) {
  const [by, setBy] = useState(filter.by);
  // A search reads the whole log, and is an entry itself: it begins with Enter.
  return (
    <form
      className="filter-fields"
      role="search"
      aria-label="Access log"
      onSubmit={(event) => {
        event.preventDefault();
        onChange({ ...filter, by: by.trim() });
      }}
    >
      <TextField
        label="By"
        hint="A user or token; press Enter."
        placeholder="ada, corp:ada"
        value={by}
        onChange={setBy}
      />
      <SelectField
        label="Since"
        value={filter.since}
        options={SINCE}
        onChange={(since) => onChange({ ...filter, since })}
      />
      <SelectField
        label="Kind"
        value={filter.kind}
        onChange={(kind) => onChange({ ...filter, kind })}
        options={[
          { value: "", label: "All" },
          ...Object.entries(KINDS).map(([value, [, , label]]) => ({ value, label })),
        ]}
      />
    </form>
  );
}
