// The API of a control plane on this machine, and the command line.
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { request } from "node:https";
import { join } from "node:path";
import { promisify } from "node:util";

export const PROGRAM = process.env["STRONGROOM_BIN"] ?? "strongroom";
const TASK_WITHIN_S = 60;

/** A control plane whose state directory is on this machine. */
export class Api {
  /** @param {string} home @param {string} origin */
  constructor(home, origin) {
    this.home = home;
    this.origin = origin;
  }

  get token() {
    return readFileSync(join(this.home, "control/token"), "utf8").trim();
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
