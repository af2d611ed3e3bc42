// A key server of its own, which a site's key server brokers: it can be away while the site is not.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { PROGRAM } from "./api.mjs";
import { Program } from "./program.mjs";
import { freePort } from "./serving.mjs";

export class KeyServer {
  /** @type {Program | undefined} */
  #program;

  /** @param {string} home @param {string} kmip @param {string} enrolment */
  constructor(home, kmip, enrolment) {
    this.home = home;
    this.kmip = kmip;
    this.enrolment = enrolment;
  }

  /**
   * Starts it, and makes it the provider `name` of a site that has not begun yet.
   * @param {import("./serving.mjs").Serving} serving
   * @param {string} name
   */
  static async behind(serving, name) {
    const home = join(serving.place, name);
    mkdirSync(home);
    const [kmip, enrolment] = [await freePort(), await freePort()].map(
      (port) => `127.0.0.1:${port}`,
    );
    const server = new KeyServer(home, String(kmip), String(enrolment));
    await server.begin();
    const files = ["ca", "cert", "key"].map((file) => `--${file} ${home}/broker/${file}.pem`);
    const [, siteKmip, siteEnrolment] = serving.listening;
    await serving.runs(`
      set -e; umask 077
      STRONGROOM_HOME=${home} strongroom keyserver token create broker --role client > ${home}/token
      strongroom keyserver enrol --server ${enrolment} --into ${home}/broker --token-fd 3 3<${home}/token
      strongroom key-provider add ${name} --kmip ${kmip} --server-name localhost ${files.join(" ")}
      strongroom keyserver init --unprotected --broker ${name} --listen ${siteKmip} --listen-enrolment ${siteEnrolment}
    `);
    return server;
  }

  /** Starts it, again with what there is. */
  async begin() {
    const listen = ["--listen", this.kmip, "--listen-enrolment", this.enrolment];
    this.#program = await Program.start([PROGRAM, "keyserver", "run", ...listen], {
      ready: "serves keys until",
      env: { STRONGROOM_HOME: this.home },
    });
  }

  async kill() {
    await this.#program?.end("SIGKILL");
  }
}
