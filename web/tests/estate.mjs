// A site of 64 simulated hosts with thousands of VMs (`strongroom-estate`), whose page is looked at.
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Api, PROGRAM } from "./api.mjs";
import { Program } from "./program.mjs";

const ESTATE = process.env["STRONGROOM_ESTATE"] ?? "strongroom-estate";
/** The API of every estate, in a network namespace of its own. */
const ORIGIN = "https://127.0.0.1:5690";
const FILLED_WITHIN_MS = 900_000;
const WITHIN = "STRONGROOM_ESTATE_PLACE";

/** The estate in whose network this program runs. */
export function estateAround() {
  const place = process.env[WITHIN];
  if (place === undefined) throw new Error("this runs in the network of an estate");
  return new Api(join(place, "home"), ORIGIN);
}

/** Whether this program runs in an estate's network. */
export const isWithin = process.env[WITHIN] !== undefined;

/**
 * Makes an estate, and runs this program again in its network. Ends with its exit code.
 * @param {string[]} options Of `strongroom-estate`.
 * @param {string} ready What the estate says when the program may begin.
 */
export async function withEstate(options, ready) {
  const place = mkdtempSync(join(tmpdir(), "estate-"));
  /** @type {Program | undefined} */
  let estate;
  try {
    // What it starts ends with it: its processes are all there are in a namespace of their own.
    const apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"];
    const command = [...apart, ESTATE, "--program", PROGRAM, "--directory", place, ...options];
    estate = await Program.start(command, { ready, withinMs: FILLED_WITHIN_MS });
    const [first = ""] = readFileSync(
      `/proc/${estate.pid}/task/${estate.pid}/children`,
      "utf8",
    ).split(" ");
    process.exitCode = await exitCodeOf(
      spawn("nsenter", [`--net=/proc/${first}/ns/net`, "--", ...process.argv], {
        stdio: "inherit",
        env: { ...process.env, [WITHIN]: place },
      }),
    );
  } finally {
    await estate?.end("SIGKILL");
    rmSync(place, { recursive: true, force: true });
  }
}

/** @param {import("node:child_process").ChildProcess} child @returns {Promise<number>} */
function exitCodeOf(child) {
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("exit", (code) => resolve(code ?? 1));
  });
}
