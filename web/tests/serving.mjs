// A real `strongroom serve` on this machine, with a home of its own.
import { spawn, execFile } from "node:child_process";
import { mkdtempSync, mkdirSync, readFileSync, rmSync } from "node:fs";
import { request } from "node:https";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const PROGRAM = process.env["STRONGROOM_BIN"] ?? "strongroom";
const STARTS_WITHIN_MS = 120_000;
const TASK_WITHIN_S = 60;

/** @returns {Promise<number>} */
function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => resolve(typeof address === "object" && address ? address.port : 0));
    });
  });
}

export class Serving {
  /** @type {import("node:child_process").ChildProcess | undefined} */
  #process;

  /** @param {string} place @param {number[]} ports */
  constructor(place, ports) {
    this.place = place;
    this.ports = ports;
    this.origin = `https://127.0.0.1:${ports[0]}`;
  }

  static async start() {
    // Paths of sockets have to be short.
    const place = mkdtempSync(join(tmpdir(), "page-"));
    for (const name of ["home", "run", "vms"]) mkdirSync(join(place, name));
    const serving = new Serving(place, [await freePort(), await freePort(), await freePort()]);
    await serving.begin();
    return serving;
  }

  get home() {
    return join(this.place, "home");
  }

  get pid() {
    return this.#process?.pid;
  }

  get token() {
    return readFileSync(join(this.home, "control/token"), "utf8").trim();
  }

  /** Starts it, again with what there is. @returns {Promise<void>} */
  begin() {
    const [api, kmip, enrolment] = this.ports.map((port) => `127.0.0.1:${port}`);
    const { home, place } = this;
    // prettier-ignore
    const child = spawn(PROGRAM, [
      "serve", "--home", home, "--run", join(place, "run"), "--name", "hall1", "--crypto-safe", "advised",
      "--listen", String(api), "--listen-kmip", String(kmip), "--listen-enrolment", String(enrolment),
      "--datastore", `vms=${join(place, "vms")}`,
    ], { stdio: ["ignore", "pipe", "pipe"] });
    this.#process = child;
    let said = "";
    child.stderr?.on("data", (part) => (said = (said + String(part)).slice(-4000)));
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new Error(`serve is not ready:\n${said}`)),
        STARTS_WITHIN_MS,
      );
      child.once("error", reject);
      child.once("exit", (code) => reject(new Error(`serve ended with ${code}:\n${said}`)));
      child.stdout?.on("data", (part) => {
        if (!String(part).includes("https://")) return;
        clearTimeout(timer);
        resolve();
      });
    });
  }

  /** Ends it; VMs run on. @returns {Promise<void>} */
  end() {
    const child = this.#process;
    if (child === undefined || child.exitCode !== null) return Promise.resolve();
    return new Promise((resolve) => {
      child.once("exit", () => resolve());
      child.kill("SIGTERM");
    });
  }

  /** Ends it with its VMs, and removes what it had. */
  async remove() {
    const { items } = await this.asks("GET", "/v1/vms?limit=1000");
    for (const { name, power } of items) {
      if (power !== "stopped")
        await this.does("POST", `/v1/vms/${name}/stop`, { force: true }).catch(() => undefined);
    }
    await this.end();
    rmSync(this.place, { recursive: true, force: true });
  }

  /**
   * Asks the API.
   * @param {string} method @param {string} path @param {unknown} [body] @param {string} [token]
   * @returns {Promise<any>}
   */
  asks(method, path, body, token = this.token) {
    const ca = readFileSync(join(this.home, "control/api.crt"));
    const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
    return new Promise((resolve, reject) => {
      const sent = request(
        `${this.origin}${path}`,
        { method, ca, headers, servername: "localhost" },
        (answer) => {
          let text = "";
          answer.on("data", (part) => (text += part));
          answer.on("end", () => {
            const value = JSON.parse(text);
            if ((answer.statusCode ?? 500) < 300) resolve(value);
            else reject(new Error(`${method} ${path}: ${text}`));
          });
        },
      );
      sent.once("error", reject);
      sent.end(body === undefined ? undefined : JSON.stringify(body));
    });
  }

  /**
   * Has something done, to the end of its task.
   * @param {string} method
   * @param {string} path
   * @param {unknown} [body]
   */
  async does(method, path, body = method === "DELETE" ? undefined : {}) {
    const { id } = await this.asks(method, path, body);
    const task = await this.asks("GET", `/v1/tasks/${id}?wait_s=${TASK_WITHIN_S}`);
    if (task.state !== "done") throw new Error(`${method} ${path}: ${JSON.stringify(task)}`);
  }

  /** Runs a line that the page has shown. @param {string} line */
  async runs(line) {
    const script = `strongroom() { "$PROGRAM" "$@"; }; ${line}`;
    const env = {
      ...process.env,
      PROGRAM,
      STRONGROOM_HOME: this.home,
      STRONGROOM_API: this.origin.replace("127.0.0.1", "localhost"),
    };
    const { stdout } = await promisify(execFile)("bash", ["-c", script], { env });
    return stdout;
  }
}
