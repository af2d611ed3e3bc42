// A real `strongroom serve` on this machine, with a home of its own.
import { mkdtempSync, mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Api, PROGRAM } from "./api.mjs";
import { Program } from "./program.mjs";

/** @returns {Promise<number>} */
export function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => resolve(typeof address === "object" && address ? address.port : 0));
    });
  });
}

/** Ends what runs VMs from this directory. @param {string} place */
export function endVmsIn(place) {
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const line = readFileSync(`/proc/${pid}/cmdline`, "utf8");
      if (line.includes("qemu-system") && line.includes(`${place}/`))
        process.kill(Number(pid), "SIGKILL");
    } catch {
      // It has ended meanwhile.
    }
  }
}

/**
 * @typedef {object} Options
 * @property {string} [address] Where key server and enrolment are; the API is on loopback.
 * @property {string[]} [more] More options of `serve`.
 */

export class Serving extends Api {
  /** @type {Program | undefined} */
  #program;
  /** @type {string[]} */
  #more;

  /** @param {string} place @param {string[]} listening @param {string[]} more */
  constructor(place, listening, more) {
    super(join(place, "home"), `https://${listening[0]}`);
    this.place = place;
    this.listening = listening;
    this.#more = more;
  }

  /** @param {Options} [options] */
  static async start(options) {
    const serving = await Serving.prepare(options);
    await serving.begin();
    return serving;
  }

  /** Its directories and addresses, before it begins. @param {Options} [options] */
  static async prepare({ address = "127.0.0.1", more = [] } = {}) {
    // Paths of sockets have to be short.
    const place = mkdtempSync(join(tmpdir(), "page-"));
    for (const name of ["home", "run", "vms"]) mkdirSync(join(place, name));
    const [api, kmip, enrolment] = [await freePort(), await freePort(), await freePort()];
    const listening = [`127.0.0.1:${api}`, `${address}:${kmip}`, `${address}:${enrolment}`];
    return new Serving(place, listening, more);
  }

  get pid() {
    return this.#program?.pid;
  }

  /** The end of what it has said. */
  get said() {
    return this.#program?.said ?? "";
  }

  /** Starts it, again with what there is. */
  async begin() {
    const [api, kmip, enrolment] = this.listening.map(String);
    const { home, place } = this;
    // prettier-ignore
    const command = [
      PROGRAM, "serve", "--home", home, "--run", join(place, "run"), "--name", "hall1",
      "--crypto-safe", "advised", "--listen", api, "--listen-kmip", kmip,
      "--listen-enrolment", enrolment, "--datastore", `vms=${join(place, "vms")}`, ...this.#more,
    ];
    this.#program = await Program.start(command.map(String), { ready: "https://" });
  }

  /** Ends it; VMs run on. */
  async end() {
    await this.#program?.end();
  }

  /** Ends it with its VMs, and removes what it had. */
  async remove() {
    try {
      const { items } = await this.asks("GET", "/v1/vms?limit=1000");
      for (const { name, power } of items) {
        if (power !== "stopped")
          await this.does("POST", `/v1/vms/${name}/stop`, { force: true }).catch(() => undefined);
      }
    } finally {
      await this.end();
      endVmsIn(this.place);
      rmSync(this.place, { recursive: true, force: true });
    }
  }
}
