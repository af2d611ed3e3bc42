import { send } from "../api/call";
import { problemOf } from "../api/problem";
import type { StrongroomEvent } from "../api/types";
import { whenSignedIn } from "../session/expiry";
import { Messages } from "./messages";

/** The server says something at least every 15 s. */
const SILENCE_MAX_MS = 40_000;
const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 10_000;

export interface Heard {
  event: (event: StrongroomEvent) => void;
  /** Events were missed: everything that is shown may have changed. */
  gap: () => void;
  connected: (isConnected: boolean) => void;
}

/** Reads the stream of events until the signal, however often it breaks. */
export async function listen(
  after: number | undefined,
  heard: Heard,
  signal: AbortSignal,
): Promise<void> {
  let last = after;
  let retryMs = RETRY_FIRST_MS;
  const isOver = () => signal.aborted;
  while (!isOver()) {
    try {
      const isFirst = last === undefined;
      const answer = await open(last, signal);
      if (answer === undefined) {
        await whenSignedIn(undefined);
      } else {
        retryMs = RETRY_FIRST_MS;
        heard.connected(true);
        if (isFirst) heard.gap();
        last = await readAll(answer, last, heard, signal);
      }
    } catch (error) {
      if (isOver()) return;
      if (!(error instanceof Error)) throw error;
    }
    if (isOver()) return;
    heard.connected(false);
    await pause(retryMs, signal);
    retryMs = Math.min(retryMs * 2, RETRY_MAX_MS);
  }
}

/** Opens the stream; nothing if the session is over. */
async function open(after: number | undefined, signal: AbortSignal): Promise<Response | undefined> {
  const query = after === undefined ? "" : `?after=${after}`;
  const answer = await send("GET", `/v1/events/stream${query}`, undefined, { signal });
  if (answer.ok) return answer;
  const problem = await problemOf(answer);
  if (problem.isOver) return undefined;
  throw problem;
}

async function readAll(
  answer: Response,
  after: number | undefined,
  heard: Heard,
  signal: AbortSignal,
): Promise<number | undefined> {
  let last = after;
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (reader === undefined) return last;
  const messages = new Messages();
  try {
    for (;;) {
      const { done, value } = await orSilence(reader.read(), signal);
      if (done) return last;
      for (const message of messages.read(value)) {
        if (message.event === "reset") {
          heard.gap();
          continue;
        }
        last = Number(message.id ?? last);
        heard.event(JSON.parse(message.data) as StrongroomEvent);
      }
    }
  } catch {
    return last;
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

function orSilence<Value>(read: Promise<Value>, signal: AbortSignal): Promise<Value> {
  return new Promise((resolve, reject) => {
    const giveUp = () => reject(new Error("the stream of events is silent"));
    const timer = setTimeout(giveUp, SILENCE_MAX_MS);
    signal.addEventListener("abort", giveUp, { once: true });
    void read.then(resolve, reject).finally(() => {
      clearTimeout(timer);
      signal.removeEventListener("abort", giveUp);
    });
  });
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
