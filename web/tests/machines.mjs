// A second machine at a cable, which is a host of the first one's site.
//
// The first machine is where the test runs: a network namespace with nothing in it but loopback, in
// which `scripts/page guests` starts the tests that need one.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { PROGRAM } from "./api.mjs";
import { Program } from "./program.mjs";
import { endVmsIn } from "./serving.mjs";

export const FIRST = "10.77.0.1";
const SECOND = "10.77.0.2";
/** Where a host has consoles, screens and images for other machines. */
const GUESTS = 5691;
const CONNECTS_WITHIN_MS = 60_000;

/** What the first machine's `serve` takes beside its own options. */
export const FIRST_OPTIONS = { address: FIRST, more: ["--listen-guests", `${FIRST}:${GUESTS}`] };

/** @param {string[]} arguments_ */
const ip = (...arguments_) => execFileSync("ip", arguments_, { stdio: "pipe" });

/** A cable from this machine to another one. */
export class Cable {
  /** @param {Program} holder */
  constructor(holder) {
    this.holder = holder;
    this.within = ["nsenter", `--net=/proc/${holder.pid}/ns/net`, "--"];
  }

  static async lay() {
    const devices = readdirSync("/proc/sys/net/ipv4/conf").filter(
      (name) => !["all", "default", "lo"].includes(name),
    );
    if (devices.length > 0)
      throw new Error(
        `this network has ${devices.join(", ")}: \`scripts/page guests\`, as root, starts these tests in one of their own`,
      );
    // The other machine's network ends with this process, however that does.
    const command = "setpriv --pdeathsig KILL -- unshare --net -- sh -c".split(" ");
    const holder = await Program.start([...command, "echo ready; exec sleep infinity"], {
      ready: "ready",
    });
    const cable = new Cable(holder);
    ip("link", "set", "lo", "up");
    ip("link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", String(holder.pid));
    ip("address", "add", `${FIRST}/24`, "dev", "wire");
    ip("link", "set", "wire", "up");
    for (const line of [
      "link set lo up",
      `address add ${SECOND}/24 dev wire`,
      "link set wire up",
    ]) {
      const [program = "", ...rest] = [...cable.within, "ip", ...line.split(" ")];
      execFileSync(program, rest, { stdio: "pipe" });
    }
    return cable;
  }

  async cut() {
    await this.holder.end("SIGKILL");
  }
}

/** A host of the site at the other end of a cable. */
export class SecondHost {
  name = "host2";

  /** @param {string} place @param {Program} program */
  constructor(place, program) {
    this.place = place;
    this.program = program;
  }

  /**
   * Has it join, and waits until it answers. It reaches the datastore `vms`, too.
   * @param {import("./serving.mjs").Serving} serving
   * @param {Cable} cable
   */
  static async join(serving, cable) {
    const place = mkdtempSync(join(tmpdir(), "page-"));
    const home = join(place, "home");
    mkdirSync(join(home, "hostd"), { recursive: true });
    // Guests take their kernels from the first host's directory.
    const boot = join(serving.home, "hostd/boot");
    mkdirSync(boot, { recursive: true });
    writeFileSync(
      join(home, "hostd/host.json"),
      JSON.stringify({ format: 1, name: "host2", boot_directories: [boot] }),
    );
    const token = join(place, "token");
    await serving.runs(
      `umask 077; strongroom host token host2 --address ${SECOND}:${GUESTS} > ${token}`,
    );
    const command = [
      ...[...cable.within, PROGRAM, "serve", "--role", "host", "--home", home],
      ...["--run", join(place, "run"), "--crypto-safe", "advised"],
      ...["--join", String(serving.listening[2]), "--token-file", token],
    ];
    const program = await Program.start(command, { ready: "host host2 takes orders" });
    const host = new SecondHost(place, program);
    try {
      await host.#connects(serving);
      await serving.runs("strongroom datastore add-host vms --host host2");
    } catch (error) {
      await host.end();
      throw error;
    }
    return host;
  }

  /** @param {import("./serving.mjs").Serving} serving */
  async #connects(serving) {
    const untilMs = Date.now() + CONNECTS_WITHIN_MS;
    for (;;) {
      const { state } = await serving.asks("GET", "/v1/hosts/host2");
      if (state === "connected") return;
      if (Date.now() > untilMs) throw new Error(`host2 is ${state}:\n${this.program.said}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  async end() {
    await this.program.end();
    endVmsIn(this.place);
    rmSync(this.place, { recursive: true, force: true });
  }
}
