import { call } from "../api/call";
import { asProblem, Problem } from "../api/problem";
import type { Task } from "../api/types";
import { pauseBefore } from "../guest/retry";
import { openSocket } from "../guest/socket";
import { Store } from "../lib/store";
import type { ImageFormat } from "./format";
import { answer, offer, Questions, UnclearHost, unreadable } from "./questions";

/** An image, and the disk that is filled with it. */
export interface Wanted {
  vm: string;
  disk: string;
  image: Blob;
  /** What people call it. */
  name: string;
  format: ImageFormat;
  /** The task that awaits it. Without one, the upload begins it. */
  task?: string;
}

export type UploadState =
  | { is: "waiting" }
  /** Bytes of the image that the host has asked for so far. */
  | { is: "sending"; bytes: number }
  | { is: "lost"; problem: Problem; untilMs: number }
  /** The host has what it wants; the task goes on without this page. */
  | { is: "sent" }
  | { is: "ended" }
  | { is: "failed"; problem: Problem };

/** Less than the relay takes in one message. */
const MESSAGE_BYTES = 2 ** 17;
/** What is read of the image ahead of the connection. */
const BUFFERED_BYTES_MAX = 2 ** 22;
const BUFFER_LOOKS_MS = 20;
const TASK_WAIT_S = 5;

const isOpen = (socket: WebSocket) => socket.readyState === WebSocket.OPEN;
const isOver = (task: Task) => task.state !== "running";

/** Answers a host for an image, again after each lost connection, until it has what it wants. */
export class Upload {
  readonly state = new Store<UploadState>({ is: "waiting" });
  readonly wanted: Wanted;
  #task: string | undefined;
  #bytes = 0;
  /** The task that fills the disk, once it has the image's client for the first time. */
  readonly begun: Promise<Task>;
  #began: (task: Task) => void = () => undefined;
  #refused: (problem: Problem) => void = () => undefined;

  constructor(wanted: Wanted) {
    this.wanted = wanted;
    this.#task = wanted.task;
    this.begun = new Promise((resolve, reject) => {
      this.#began = resolve;
      this.#refused = reject;
    });
    // Not everybody asks.
    this.begun.catch(() => undefined);
  }

  get task(): string | undefined {
    return this.#task;
  }

  get isOver(): boolean {
    const { is } = this.state.state();
    return is === "sent" || is === "ended" || is === "failed";
  }

  /** Ends with the upload, and never fails: the state says how it ended. */
  async run(): Promise<void> {
    for (let tries = 0; ; tries += 1) {
      const before = this.#bytes;
      try {
        if (!(await this.#isAwaited())) {
          this.#end({ is: "ended" });
          return;
        }
        this.state.become(await this.#once());
        if (this.isOver) return;
      } catch (error) {
        const problem = asProblem(error);
        if (this.#bytes > before) tries = 0;
        const pauseMs = this.#mayGoOn(problem) ? pauseBefore(tries, Math.random()) : undefined;
        if (pauseMs === undefined) {
          this.#end({ is: "failed", problem });
          return;
        }
        this.state.become({ is: "lost", problem, untilMs: Date.now() + pauseMs });
        await new Promise((resolve) => setTimeout(resolve, pauseMs));
      }
    }
  }

  #end(state: UploadState): void {
    this.#refused(
      state.is === "failed" ? state.problem : new Problem("conflict", "the task is over already"),
    );
    this.state.become(state);
  }

  /** A lost connection is made again, if a part of the image is there. */
  #mayGoOn({ code }: Problem): boolean {
    return this.#task !== undefined && (code === "unreachable" || code === "unavailable");
  }

  /** Waits until the task awaits this image; says no if it has ended. */
  async #isAwaited(): Promise<boolean> {
    if (this.#task === undefined) return true;
    for (;;) {
      const task = await call("task_show", {
        path: { task: this.#task },
        query: { wait_s: TASK_WAIT_S },
      });
      if (isOver(task)) return false;
      if (task.awaits_image === this.wanted.disk) return true;
    }
  }

  async #once(): Promise<UploadState> {
    const { vm, disk } = this.wanted;
    const { ticket } = await call("vm_ticket", {
      path: { vm },
      body: { operation: "upload", disk },
    });
    const turn = new AbortController();
    try {
      return await new Promise<UploadState>((resolve, reject) => {
        openSocket(ticket, turn.signal, {
          opened: (socket) => this.#opened(socket, ticket, resolve, reject),
          closed: reject,
        });
      });
    } finally {
      turn.abort();
    }
  }

  #opened(
    socket: WebSocket,
    ticket: string,
    resolve: (end: UploadState) => void,
    reject: (problem: Problem) => void,
  ): void {
    const { vm, disk, image, format } = this.wanted;
    const questions = new Questions(image.size);
    let before = Promise.resolve();
    const failed = (error: unknown) => reject(asProblem(error));
    socket.addEventListener("message", ({ data }: MessageEvent<unknown>) => {
      try {
        if (!(data instanceof ArrayBuffer)) throw new UnclearHost();
        for (const question of questions.take(data)) {
          if (question.is === "end") {
            resolve({ is: "sent" });
            return;
          }
          if (question.is === "refused") {
            throw new Problem("invalid", `${this.wanted.name}: ${question.reason}`);
          }
          before = before.then(() => this.#answer(socket, question)).catch(failed);
        }
      } catch (error) {
        failed(
          error instanceof UnclearHost
            ? new Problem("host_failed", "the host asks for what the image has not")
            : error,
        );
      }
    });
    socket.send(offer(image.size));
    const path = { vm, disk };
    const what = `Fill ${disk} of ${vm} with ${this.wanted.name}`;
    call("vm_import_disk", { path, body: { ticket, format } }, { what })
      .then((task) => {
        this.#task = task.id;
        this.#began(task);
      })
      .catch(failed);
  }

  async #answer(
    socket: WebSocket,
    { offset, length }: { offset: number; length: number },
  ): Promise<void> {
    if (!isOpen(socket)) return;
    let bytes: ArrayBuffer;
    try {
      bytes = await this.wanted.image.slice(offset, offset + length).arrayBuffer();
    } catch (error) {
      const reason = error instanceof Error ? error.message : "it cannot be read";
      socket.send(unreadable(reason));
      throw new Problem("invalid", `${this.wanted.name} cannot be read any more: ${reason}`);
    }
    for (const part of answer(bytes)) {
      for (let at = 0; at < part.byteLength; at += MESSAGE_BYTES) {
        socket.send(part.slice(at, at + MESSAGE_BYTES));
      }
    }
    this.#bytes += length;
    this.state.become({ is: "sending", bytes: this.#bytes });
    // One that is closed keeps what it had to send.
    while (socket.bufferedAmount > BUFFERED_BYTES_MAX && isOpen(socket)) {
      await new Promise((resolve) => setTimeout(resolve, BUFFER_LOOKS_MS));
    }
  }
}
