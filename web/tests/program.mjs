// A program that a test starts, waits for, and ends.
import { spawn } from "node:child_process";

const STARTS_WITHIN_MS = 120_000;
const SAID_MAX = 4_000;

export class Program {
  /** @type {import("node:child_process").ChildProcess} */
  #process;
  #said = "";

  /** @param {import("node:child_process").ChildProcess} child */
  constructor(child) {
    this.#process = child;
    for (const stream of [child.stdout, child.stderr])
      stream?.on("data", (part) => (this.#said = (this.#said + String(part)).slice(-SAID_MAX)));
  }

  /**
   * Starts it, and waits until it has said that it is ready.
   * @param {string[]} command
   * @param {{ ready: string, env?: Record<string, string>, withinMs?: number, fds?: number[] }} how
   */
  static async start(command, { ready, env = {}, withinMs = STARTS_WITHIN_MS, fds = [] }) {
    const [file = "", ...args] = command;
    const child = spawn(file, args, {
      stdio: ["pipe", "pipe", "pipe", ...fds],
      env: { ...process.env, ...env },
    });
    const program = new Program(child);
    try {
      await program.#waitFor(ready, withinMs);
    } catch (error) {
      child.kill("SIGKILL");
      throw error;
    }
    return program;
  }

  /** @param {string} ready @param {number} withinMs @returns {Promise<void>} */
  #waitFor(ready, withinMs) {
    const child = this.#process;
    const name = child.spawnargs.slice(0, 3).join(" ");
    /** @type {NodeJS.Timeout | undefined} */
    let timer;
    return new Promise((/** @type {(nothing: void) => void} */ resolve, reject) => {
      const fail = (/** @type {string} */ what) =>
        reject(new Error(`${name} ${what}:\n${this.#said}`));
      timer = setTimeout(() => fail("is not ready"), withinMs);
      child.once("error", reject);
      child.once("exit", (code, signal) => fail(`ended with ${code ?? signal}`));
      const look = () => {
        if (this.#said.includes(ready)) resolve();
      };
      child.stdout?.on("data", look);
      child.stderr?.on("data", look);
    }).finally(() => clearTimeout(timer));
  }

  get pid() {
    return this.#process.pid ?? 0;
  }

  /** The end of what it has said. */
  get said() {
    return this.#said;
  }

  get hasEnded() {
    return this.#process.exitCode !== null || this.#process.signalCode !== null;
  }

  /** @param {string} text */
  hears(text) {
    this.#process.stdin?.write(text);
  }

  /** Ends it. @param {NodeJS.Signals} [signal] @returns {Promise<void>} */
  end(signal = "SIGTERM") {
    if (this.hasEnded) return Promise.resolve();
    return new Promise((resolve) => {
      this.#process.once("exit", () => resolve());
      this.#process.kill(signal);
    });
  }
}
