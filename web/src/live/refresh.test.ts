import { QueryClient } from "@tanstack/react-query";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Problem } from "../api/problem";
import type { StrongroomEvent } from "../api/types";
import { Refresher, TOGETHER_MS } from "./refresh";

const ID = "0190d5c2-0000-7000-8000-000000000001";
const VOLUME = "0190d5c2-0000-7000-8000-0000000000aa";
const OTHER = "0190d5c2-0000-7000-8000-000000000002";

function event(change: Partial<StrongroomEvent>): StrongroomEvent {
  return {
    id: 1,
    at_unix_ms: 0,
    kind: "task.done",
    message: "",
    object: { kind: "vm", id: ID, name: "web1" },
    ...change,
  };
}

const KEYS = {
  byName: ["vm_show", { path: { vm: "web1" } }],
  byId: ["vm_snapshot_list", { path: { vm: ID } }],
  volume: ["volume_show", { path: { volume: VOLUME } }],
  otherVolume: ["volume_show", { path: { volume: OTHER } }],
  host: ["host_show", { path: { host: "web1" } }],
  list: ["volume_list", {}],
} as const;
type Name = keyof typeof KEYS;

let cache: QueryClient;
let refresher: Refresher;

const states = () =>
  Object.fromEntries(
    (Object.keys(KEYS) as Name[]).map((name) => {
      const state = cache.getQueryState(KEYS[name]);
      if (state?.error instanceof Problem) return [name, state.error.code];
      return [name, state?.isInvalidated === true ? "asked" : "kept"];
    }),
  );

beforeEach(() => {
  vi.useFakeTimers();
  cache = new QueryClient();
  for (const key of Object.values(KEYS)) cache.setQueryData(key, {});
  refresher = new Refresher(cache);
});
afterEach(() => vi.useRealTimers());

const after = (...events: StrongroomEvent[]) => {
  events.forEach((each) => refresher.event(each));
  vi.advanceTimersByTime(TOGETHER_MS);
  return states();
};

describe("an event", () => {
  const untouched = { host: "kept", otherVolume: "asked", list: "asked" };

  it("of a change has what it is about asked for", () => {
    expect(after(event({}))).toEqual({
      ...untouched,
      byName: "asked",
      byId: "asked",
      volume: "asked",
    });
  });

  it("of an end has it asked for no more, with its volumes", () => {
    const gone = { ...untouched, byName: "not_found", byId: "not_found", volume: "not_found" };
    expect(after(event({}), event({ gone: [ID, VOLUME] }))).toEqual(gone);
    // Nor by events about others.
    const other = { kind: "vm", id: OTHER, name: "db1" } as const;
    expect(after(event({ object: other }))).toEqual(gone);
  });

  it("of another one with the name of one that is gone has that asked for", () => {
    const next = { kind: "vm", id: OTHER, name: "web1" } as const;
    const states = after(event({ gone: [ID] }), event({ object: next }));
    expect(states).toMatchObject({ byName: "asked", byId: "not_found", host: "kept" });
  });
});
