import type { StrongroomEvent } from "../api/types";
import { listen, type Heard } from "./stream";

/** The lock of the tab that reads the stream, and the channel on which it tells the others. */
const NAME = "strongroom-events";

type Told =
  | { kind: "event"; event: StrongroomEvent }
  | { kind: "gap" }
  | { kind: "connected"; isConnected: boolean }
  | { kind: "question" };

/**
 * Follows the events, with one stream for all tabs of this origin: a browser has six connections
 * for them. The tab with the lock reads, beginning after the event `after`; when it closes, another
 * one goes on after the last event that it has heard.
 */
export function follow(after: number | undefined, heard: Heard): () => void {
  const channel = new BroadcastChannel(NAME);
  const ending = new AbortController();
  let last = after;
  let isConnected = false;
  let isReader = false;

  const take = (told: Told) => {
    switch (told.kind) {
      case "event":
        last = told.event.id;
        heard.event(told.event);
        break;
      case "gap":
        heard.gap();
        break;
      case "connected":
        isConnected = told.isConnected;
        heard.connected(isConnected);
        break;
      case "question":
        if (isReader) channel.postMessage({ kind: "connected", isConnected } satisfies Told);
        break;
    }
  };
  const tell = (told: Told) => {
    channel.postMessage(told);
    take(told);
  };

  channel.addEventListener("message", ({ data }: MessageEvent<Told>) => take(data));
  channel.postMessage({ kind: "question" } satisfies Told);
  void navigator.locks
    .request(NAME, { signal: ending.signal }, async () => {
      isReader = true;
      await listen(
        last,
        {
          event: (event) => tell({ kind: "event", event }),
          gap: () => tell({ kind: "gap" }),
          connected: (isUp) => tell({ kind: "connected", isConnected: isUp }),
        },
        ending.signal,
      );
    })
    .catch(() => undefined);

  return () => {
    ending.abort();
    channel.close();
  };
}
