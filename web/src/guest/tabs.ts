/** What tabs of one browser tell each other of a console that one of them writes to. */
interface News {
  kind: "wanted" | "left";
  vm: string;
}

const NAME = "strongroom-consoles";
/** A tab that still has it by then does not answer. */
const LEAVES_WITHIN_MS = 2_000;

/** Asks other tabs to leave the console to this one. Returns when one has, or none answers. */
export function askForConsole(vm: string): Promise<void> {
  const channel = new BroadcastChannel(NAME);
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      channel.close();
      resolve();
    };
    const timer = setTimeout(done, LEAVES_WITHIN_MS);
    channel.addEventListener("message", ({ data }: MessageEvent<News>) => {
      if (data.kind === "left" && data.vm === vm) done();
    });
    channel.postMessage({ kind: "wanted", vm } satisfies News);
  });
}

/** Hears of tabs that want the console. `leave` says whether it had it, and has left it. */
export function hearOfConsole(vm: string, leave: () => boolean): () => void {
  const channel = new BroadcastChannel(NAME);
  channel.addEventListener("message", ({ data }: MessageEvent<News>) => {
    if (data.kind !== "wanted" || data.vm !== vm || !leave()) return;
    channel.postMessage({ kind: "left", vm } satisfies News);
  });
  return () => channel.close();
}
