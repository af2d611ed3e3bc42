import { call } from "../api/call";
import { asProblem, Problem } from "../api/problem";
import type { RequestOf } from "../api/types";
import { Store } from "../lib/store";
import type { Welcome } from "./first";
import { pauseBefore, STEADY_MS } from "./retry";
import { openSocket } from "./socket";

export type Use = NonNullable<RequestOf<"vm_ticket">["body"]>;

export type LinkState =
  | { is: "closed" }
  | { is: "connecting" }
  /** `isLook`: it was asked for to look only. */
  | { is: "open"; writer: boolean; isLook: boolean }
  /** It is tried again at a moment; the problem says what was in the way. */
  | { is: "lost"; problem: Problem; untilMs: number }
  /** It is tried again when somebody asks for it. */
  | { is: "refused"; problem: Problem };

/** Who takes the bytes of a connection. */
export interface Taker {
  /** Sets what the socket calls, before it returns: the next message is the guest's. */
  opened: (socket: WebSocket, welcome: Welcome) => void;
  ended: () => void;
}

/** Refusals that the next try would meet as well. */
const FINAL: ReadonlySet<Problem["code"]> = new Set([
  "forbidden",
  "not_found",
  "malformed",
  "invalid",
  "conflict",
  "unauthorized",
  "no_host",
]);

/** A connection to a guest, which is made again when it is lost. */
export class GuestLink {
  readonly state = new Store<LinkState>({ is: "closed" });
  readonly #vm: string;
  readonly #taker: Taker;
  #use: Use;
  #tries = 0;
  #now: AbortController | undefined;

  constructor(vm: string, use: Use, taker: Taker) {
    this.#vm = vm;
    this.#use = use;
    this.#taker = taker;
  }

  /** Connects at once, in place of what there is. */
  connect(use: Use = this.#use): void {
    this.#use = use;
    this.#tries = 0;
    void this.#try();
  }

  /** Connects as something else, at once if it is connected or about to be. */
  becomes(use: Use): void {
    if (this.state.state().is === "closed") this.#use = use;
    else this.connect(use);
  }

  /** Sets what is asked for when the connection is made again. */
  goesOnAs(use: Use): void {
    this.#use = use;
  }

  /** Somebody else has taken over: what is typed does not reach the guest any more. */
  losesWriting(): void {
    const state = this.state.state();
    if (state.is === "open") this.state.become({ ...state, writer: false });
  }

  close(): void {
    this.#stop();
    this.state.become({ is: "closed" });
  }

  #stop(): void {
    this.#now?.abort();
    this.#now = undefined;
  }

  async #try(): Promise<void> {
    this.#stop();
    const turn = new AbortController();
    this.#now = turn;
    this.state.become({ is: "connecting" });
    try {
      const { ticket } = await call(
        "vm_ticket",
        { path: { vm: this.#vm }, body: this.#use },
        { signal: turn.signal },
      );
      if (!turn.signal.aborted) this.#open(ticket, turn);
    } catch (error) {
      if (!turn.signal.aborted) this.#lost(asProblem(error));
    }
  }

  #open(ticket: string, { signal }: AbortController): void {
    let openedMs: number | undefined;
    signal.addEventListener("abort", () => {
      if (openedMs !== undefined) this.#taker.ended();
    });
    openSocket(ticket, signal, {
      opened: (socket, welcome) => {
        openedMs = performance.now();
        this.#taker.opened(socket, welcome);
        const isLook = "read_only" in this.#use && this.#use.read_only;
        this.state.become({ is: "open", writer: welcome.writer && !isLook, isLook });
      },
      closed: (problem) => {
        if (openedMs !== undefined) {
          this.#taker.ended();
          if (performance.now() - openedMs >= STEADY_MS) this.#tries = 0;
        }
        this.#lost(problem);
      },
    });
  }

  #lost(problem: Problem): void {
    const pauseMs = FINAL.has(problem.code) ? undefined : pauseBefore(this.#tries, Math.random());
    if (pauseMs === undefined) {
      this.#stop();
      this.state.become({ is: "refused", problem });
      return;
    }
    this.#tries += 1;
    const turn = new AbortController();
    this.#now = turn;
    const timer = setTimeout(() => void this.#try(), pauseMs);
    turn.signal.addEventListener("abort", () => clearTimeout(timer));
    this.state.become({ is: "lost", problem, untilMs: Date.now() + pauseMs });
  }
}
