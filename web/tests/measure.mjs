// What the list of 10,000 VMs costs a browser: `scripts/page measure`.
//
// Five times, in a browser that has loaded nothing: the time to the first rows and to all VMs, and
// the longest task of the page's thread while it loads, while somebody scrolls, filters, sorts and
// selects all, and while VMs change. A task is told by the processor's time that it takes, and by
// the clock, which on a busy machine has that of others in it. Fails if the median of the longest
// tasks takes more than 50 ms of a processor for anything, or the first rows a second.
import { cpus, loadavg } from "node:os";
import { launch, Window } from "./browser.mjs";
import { estateAround, isWithin, withEstate } from "./estate.mjs";

const VMS = 10_000;
const ROUNDS = 5;
const TASK_MS_MAX = 50;
const FIRST_ROWS_MS_MAX = 1_000;
const FOREVER_S = 7 * 86_400;
const FIRST_ROWS = "first rows";
const ALL_READ = "all VMs";
const WITHIN = { timeout: 120_000 };

/** @typedef {import("playwright-core").Page} Page */

/** What a person does, each followed until the page is at rest. @type {Record<string, (page: Page) => Promise<void>>} */
const DOES = {
  scrolling: async (page) => {
    await page.locator(".vm-grid").hover();
    for (let turns = 0; turns < 60; turns += 1) {
      await page.mouse.wheel(0, turns < 45 ? 700 : -2_000);
      await page.waitForTimeout(16);
    }
    await page.locator(".vm-grid").focus();
    for (const key of ["End", "PageUp", "PageUp", "Home", "PageDown"])
      await page.keyboard.press(key);
  },
  filtering: async (page) => {
    const text = page.getByLabel("Name or tag");
    await text.pressSequentially("vm-0123", { delay: 40 });
    await text.fill("");
    for (const state of ["running", "stopped", ""])
      await page.getByLabel("State", { exact: true }).selectOption(state);
    await page.getByLabel("Host", { exact: true }).selectOption("sim-7");
    await page.getByLabel("Host", { exact: true }).selectOption("");
  },
  sorting: async (page) => {
    for (const head of ["State", "Host", "Memory", "Disks", "Tags", "Name"]) {
      for (let times = 0; times < 2; times += 1) {
        await page
          .locator(".vm-head")
          .getByRole("button", { name: new RegExp(`^${head}`) })
          .click();
        await rests(page);
      }
    }
  },
  selecting: async (page) => {
    const all = page.getByLabel("Select all that are shown");
    await all.click();
    await page.getByText("10,000 VMs selected").waitFor(WITHIN);
    await page.getByRole("button", { name: "More for the selected VMs" }).click();
    await page.keyboard.press("Escape");
    await all.click();
    await page.getByText("VMs selected").waitFor({ ...WITHIN, state: "detached" });
  },
  changes: async (page) => {
    const api = estateAround();
    for (const number of [1, 2, 3, 5_000, 9_000])
      await api.does("PATCH", `/v1/vms/vm-${String(number).padStart(5, "0")}`, {
        notes: `measured at ${Date.now()}`,
      });
    await page.waitForTimeout(2_500);
  },
};

/** Keeps when the first rows of a document were drawn. */
function observe() {
  const looking = new MutationObserver(() => {
    if (document.querySelector(".vm-rows .vm-row") === null) return;
    looking.disconnect();
    // After the frame that has them.
    requestAnimationFrame(() =>
      setTimeout(() => Object.assign(window, { firstRowsMs: performance.now() })),
    );
  });
  looking.observe(document, { childList: true, subtree: true });
}

/** Waits until nothing is drawn any more. @param {Page} page */
async function rests(page) {
  await page.evaluate(
    () =>
      new Promise((resolve) =>
        requestAnimationFrame(() =>
          requestIdleCallback(() => resolve(undefined), { timeout: 2_000 }),
        ),
      ),
  );
}

/**
 * The longest task of the page's thread meanwhile: by the processor's time, and by the clock.
 * @param {import("playwright-core").Browser} browser
 * @param {Page} page
 * @param {() => Promise<void>} body
 */
async function longest(browser, page, body) {
  await browser.startTracing(page, { categories: ["toplevel"] });
  await body();
  await rests(page);
  /** @type {{ traceEvents: any[] }} */
  const { traceEvents } = JSON.parse((await browser.stopTracing()).toString());
  const threadOf = (/** @type {any} */ { pid, tid }) => `${pid} ${tid}`;
  const threads = new Set(
    traceEvents
      .filter(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain")
      .map(threadOf),
  );
  const tasks = traceEvents.filter(
    (event) => event.name.endsWith("RunTask") && event.ph === "X" && threads.has(threadOf(event)),
  );
  if (!tasks.some(({ tdur }) => tdur > 0)) throw new Error("the browser told of no task");
  return {
    processorMs: Math.max(...tasks.map(({ tdur }) => (tdur ?? 0) / 1_000)),
    clockMs: Math.max(...tasks.map(({ dur }) => (dur ?? 0) / 1_000)),
  };
}

async function round() {
  const browser = await launch();
  try {
    const window = await Window.open(browser, estateAround(), { width: 1600, height: 1000 });
    const first = await window.signedIn("/about");
    await first.getByRole("heading", { name: "About" }).waitFor(WITHIN);
    await window.context.addInitScript(observe);
    const page = await window.tab("/about");
    await page.getByRole("heading", { name: "About" }).waitFor(WITHIN);
    await first.close();
    /** @type {Record<string, number>} */
    const found = {};
    const note = async (/** @type {string} */ name, /** @type {() => Promise<void>} */ body) => {
      const { processorMs, clockMs } = await longest(browser, page, body);
      found[`${name}, of a processor`] = processorMs;
      found[`${name}, by the clock`] = clockMs;
    };
    await note("loading", async () => {
      await page.goto(`${estateAround().origin}/vms`);
      await page.waitForFunction(() => Reflect.has(globalThis, "firstRowsMs"), undefined, WITHIN);
      found[FIRST_ROWS] = await page.evaluate(() => Reflect.get(globalThis, "firstRowsMs"));
      await page.waitForFunction(
        () => !/ read/.test(document.querySelector(".vms [role=status]")?.textContent ?? " read"),
        undefined,
        WITHIN,
      );
      found[ALL_READ] = await page.evaluate(() => performance.now());
    });
    for (const [name, does] of Object.entries(DOES)) await note(name, () => does(page));
    if (window.faults.length > 0) throw new Error(window.faults.join("\n"));
    return found;
  } finally {
    await browser.close();
  }
}

/** What a median may be at most. @param {string} name */
function mostOf(name) {
  if (name === FIRST_ROWS) return FIRST_ROWS_MS_MAX;
  return name.endsWith("of a processor") ? TASK_MS_MAX : Infinity;
}

async function measure() {
  const rounds = /** @type {Record<string, number>[]} */ ([]);
  for (let number = 0; number < ROUNDS; number += 1) rounds.push(await round());
  const of = (/** @type {string} */ name) => rounds.map((found) => found[name] ?? 0);
  const median = (/** @type {string} */ name) =>
    of(name).sort((one, other) => one - other)[Math.floor(ROUNDS / 2)] ?? 0;
  const shown = (/** @type {number} */ ms) => ms.toFixed(0).padStart(6);
  const load = loadavg().map((each) => each.toFixed(1));
  const lines = [`${VMS} VMs, in ms; load ${load.join(" ")}; ${cpus().length} processors`];
  let isWell = true;
  for (const name of Object.keys(rounds[0] ?? {})) {
    const isOver = median(name) > mostOf(name);
    if (isOver) isWell = false;
    const over = isOver ? `  more than ${mostOf(name)}` : "";
    lines.push(
      `${name.padEnd(30)} median ${shown(median(name))}  of ${of(name).map(shown).join("")}${over}`,
    );
  }
  process.stdout.write(`${lines.join("\n")}\n`);
  return isWell;
}

if (isWithin) process.exitCode = (await measure()) ? 0 : 1;
else
  await withEstate(
    ["--vms", String(VMS), "--idle-seconds", String(FOREVER_S), "--seconds", "1"],
    "idle\n",
  );
