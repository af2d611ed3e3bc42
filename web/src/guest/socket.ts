import { Problem } from "../api/problem";
import { readFirst, type Welcome } from "./first";

/** The protocol of the page's WebSocket; the ticket is named beside it, in no address. */
const PROTOCOL = "strongroom-guest";
const TICKET = "strongroom-ticket.";
/** Longer than a ticket is good for, or a host may take for its welcome. */
const OPENS_WITHIN_MS = 45_000;
const ENDED = 1000;

export interface Opening {
  /** Sets what the socket calls, before it returns: the next message is the host's. */
  opened: (socket: WebSocket, welcome: Welcome) => void;
  /** It was not opened, or has ended; not called after an abort. */
  closed: (problem: Problem) => void;
}

/** Opens a connection to a host with a ticket, until `signal`. */
export function openSocket(ticket: string, signal: AbortSignal, to: Opening): void {
  const socket = new WebSocket(`wss://${location.host}/relay`, [PROTOCOL, `${TICKET}${ticket}`]);
  socket.binaryType = "arraybuffer";
  let isOpen = false;
  let refusal: Problem | undefined;
  const timer = setTimeout(() => socket.close(), OPENS_WITHIN_MS);
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    socket.close();
  });
  socket.addEventListener(
    "message",
    ({ data }: MessageEvent<unknown>) => {
      clearTimeout(timer);
      if (signal.aborted) return;
      const first = readFirst(data);
      if (first instanceof Problem) {
        refusal = first;
        socket.close();
        return;
      }
      isOpen = true;
      to.opened(socket, first);
    },
    { once: true },
  );
  socket.addEventListener("close", ({ code }) => {
    clearTimeout(timer);
    if (!signal.aborted) to.closed(refusal ?? whyItEnded(code, isOpen));
  });
}

function whyItEnded(code: number, wasOpen: boolean): Problem {
  if (!wasOpen) {
    // A browser hides the status of a refusal; the next ticket says what is in the way.
    return new Problem("unreachable", "the control plane does not open the connection");
  }
  return code === ENDED
    ? new Problem("unavailable", "the guest's side has ended the connection")
    : new Problem("unreachable", "the connection is lost");
}
