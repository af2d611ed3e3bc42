// The memory of a page that stays open while things happen to 10,000 VMs: `scripts/page soak MINUTES`.
//
// VMs are started, stopped, changed, snapshotted, made and deleted all the time, five each second.
// The page stays open, and somebody looks at its other screens now and then. Twice a minute it is
// back at the VMs, the garbage is collected, and what is left is counted. What grows in the second
// half of the time by more than a bound fails.
import { loadavg } from "node:os";
import { estateAround, isWithin, withEstate } from "./estate.mjs";
import { launch, Window } from "./browser.mjs";

const VMS = 10_000;
const CHANGE_EVERY_MS = 200;
const FOREVER_S = 7 * 86_400;

const SAMPLE_EVERY_MS = 30_000;
/** Every so many samples, the other screens are visited. */
const WALK_EVERY = 4;
const SETTLED_WITHIN = { timeout: 60_000 };
const SCREENS = ["Overview", "Hosts", "Datastores", "Tasks", "Alarms", "Events", "VMs"];

/** What may be more at the end of the second half than at its beginning, by its trend. */
const GROWTH_MAX = { heapBytes: 1024 ** 2, nodes: 200, listeners: 50 };

/** @typedef {{ heapBytes: number, nodes: number, listeners: number }} Held */
/** @typedef {Held & { atMs: number }} Sample */

const minutes = Number(process.argv[2] ?? 60);
if (!(minutes >= 1)) throw new Error("soak MINUTES, 1 or more");

async function soak() {
  const estate = estateAround();
  const browser = await launch();
  const changes = new Changes(estate);
  try {
    const window = await Window.open(browser, estate);
    const page = await window.signedIn("/vms");
    await page.getByRole("grid", { name: "VMs" }).waitFor(SETTLED_WITHIN);
    const devtools = await window.context.newCDPSession(page);
    await devtools.send("HeapProfiler.enable");
    changes.begin();
    /** @type {Sample[]} */
    const samples = [];
    const beganMs = Date.now();
    for (let turn = 0; Date.now() < beganMs + minutes * 60_000; turn += 1) {
      if (turn % WALK_EVERY === WALK_EVERY - 1) await walk(page);
      await page.waitForTimeout(Math.max(0, beganMs + (turn + 1) * SAMPLE_EVERY_MS - Date.now()));
      const sample = { atMs: Date.now() - beganMs, ...(await held(devtools)) };
      samples.push(sample);
      say(
        `${(sample.atMs / 60_000).toFixed(1)} min: ${inWords(sample)}; ${changes.done} changes; load ${loadavg()[0]?.toFixed(1)}`,
      );
    }
    if (changes.done < samples.length)
      throw new Error(`only ${changes.done} changes: ${changes.failure}`);
    return report(samples, window.faults);
  } finally {
    changes.end();
    await browser.close();
  }
}

/** What happens to VMs, one thing after the other. */
class Changes {
  done = 0;
  /** @type {unknown} */
  failure;
  /** @type {NodeJS.Timeout | undefined} */
  #timer;
  #next = 0;

  /** @param {import("./api.mjs").Api} api */
  constructor(api) {
    this.api = api;
  }

  begin() {
    this.#timer = setInterval(() => {
      this.#one().then(
        () => (this.done += 1),
        (error) => (this.failure = error),
      );
    }, CHANGE_EVERY_MS);
  }

  end() {
    clearInterval(this.#timer);
  }

  async #one() {
    const number = this.#next++;
    const round = Math.floor(number / VMS);
    // Neighbours in time are far from each other in the list.
    const vm = `vm-${String(1 + ((number * 7919) % VMS)).padStart(5, "0")}`;
    const path = `/v1/vms/${vm}`;
    switch (number % 5) {
      case 0:
        await this.api.does("POST", `${path}/start`);
        return this.api.does("POST", `${path}/stop`, { force: true });
      case 1:
        return this.api.does("PATCH", path, { notes: `looked at in round ${round}` });
      case 2:
        await this.api.does("POST", `${path}/snapshots`, { name: "soak" });
        return this.api.does("DELETE", `${path}/snapshots/soak`);
      case 3:
        return this.api.does("PATCH", path, { tags: { set: [`round-${round % 8}`], remove: [] } });
      default:
        await this.api.does("POST", "/v1/vms", {
          name: `soak-${number}`,
          datastore: "ds-1",
          memory_bytes: 256 * 1024 ** 2,
          disks: [{ size_bytes: 1024 ** 3 }],
          nics: [],
          encryption: { encrypted: false },
        });
        return this.api.does("DELETE", `/v1/vms/soak-${number}`);
    }
  }
}

/** Looks at the other screens, and comes back. @param {import("playwright-core").Page} page */
async function walk(page) {
  for (const name of SCREENS) {
    const link = page.getByRole("navigation").getByRole("link", { name: new RegExp(`^${name}`) });
    await link.click(SETTLED_WITHIN);
    await page.getByRole("heading", { level: 1, name, exact: true }).waitFor(SETTLED_WITHIN);
    await page.waitForFunction(
      () => document.querySelector(".waiting") === null,
      undefined,
      SETTLED_WITHIN,
    );
  }
}

/** What the page holds on to. @param {import("playwright-core").CDPSession} devtools @returns {Promise<Held>} */
async function held(devtools) {
  // What weak references and finalizers let go of is collected by the second one.
  for (let times = 0; times < 2; times += 1) await devtools.send("HeapProfiler.collectGarbage");
  const { usedSize } = await devtools.send("Runtime.getHeapUsage");
  const { nodes, jsEventListeners } = await devtools.send("Memory.getDOMCounters");
  return { heapBytes: usedSize, nodes, listeners: jsEventListeners };
}

/** @param {Sample[]} samples @param {string[]} faults */
function report(samples, faults) {
  const last = samples.slice(Math.floor(samples.length / 2));
  const grown = {
    heapBytes: growth(last, "heapBytes"),
    nodes: growth(last, "nodes"),
    listeners: growth(last, "listeners"),
  };
  say(`grown in the second half, of ${last.length} samples: ${inWords(grown)}`);
  const over = /** @type {(keyof Held)[]} */ (Object.keys(GROWTH_MAX)).filter(
    (name) => grown[name] > GROWTH_MAX[name],
  );
  for (const name of over) say(`${name} grows by more than ${GROWTH_MAX[name]}`);
  for (const fault of faults.slice(0, 20)) say(`fault: ${fault}`);
  return over.length === 0 && faults.length === 0 && last.length > 1;
}

/** By how much it grows over these samples: least squares. @param {Sample[]} samples @param {keyof Held} name */
function growth(samples, name) {
  const mean = (/** @type {number[]} */ values) =>
    values.reduce((sum, value) => sum + value, 0) / values.length;
  const [times, values] = [samples.map(({ atMs }) => atMs), samples.map((each) => each[name])];
  const [time, value] = [mean(times), mean(values)];
  const together = times.map((at, index) => (at - time) * ((values[index] ?? 0) - value));
  const squares = times.map((at) => (at - time) ** 2);
  const spanMs = (times.at(-1) ?? 0) - (times[0] ?? 0);
  return (mean(together) / mean(squares)) * spanMs;
}

/** @param {Held} held */
function inWords({ heapBytes, nodes, listeners }) {
  const count = (/** @type {number} */ value) => Math.round(value).toLocaleString("en");
  return `${(heapBytes / 1024 ** 2).toFixed(2)} MiB of scripts, ${count(nodes)} nodes, ${count(listeners)} listeners`;
}

/** @param {string} line */
function say(line) {
  process.stdout.write(`${line}\n`);
}

if (isWithin) process.exitCode = (await soak()) ? 0 : 1;
else
  await withEstate(
    ["--vms", String(VMS), "--idle-seconds", String(FOREVER_S), "--seconds", "1"],
    "idle\n",
  );
