// What screens say to those who do not see them, and what they are without a mouse.
//
// Each screen has its accessibility tree in tests/accessibility, without what differs from run to
// run. STRONGROOM_TRANSCRIBE=1 writes the trees anew; read what changed as a screen reader would
// say it.
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { launch, Window } from "./browser.mjs";
import { makeEstate, SCREENS } from "./screens.mjs";
import { Serving } from "./serving.mjs";

const TREES = fileURLToPath(new URL("accessibility", import.meta.url));
const TRANSCRIBES = process.env["STRONGROOM_TRANSCRIBE"] === "1";
const SOON = { timeout: 30_000 };
/** A disk is read once a minute. */
const SETTLES_WITHIN_MS = 180_000;
/** More than any screen has; a walk that is as long goes in circles. */
const STEPS_MAX = 250;

/** @typedef {import("playwright-core").Page} Page */

/** @type {Serving} */
let serving;
/** @type {import("playwright-core").Browser} */
let browser;
/** @type {Window} */
let window;
/** @type {Page} */
let page;
/** What this machine and this server are called: text that is masked. @type {[string, string][]} */
let own = [];

before(async () => {
  serving = await Serving.start();
  browser = await launch();
  await makeEstate(serving);
  const [host] = (await serving.asks("GET", "/v1/hosts")).items;
  own = [
    [serving.place, "PLACE"],
    [new URL(serving.origin).host, "ADDRESS"],
    [host.cpu_model, "MODEL"],
    [host.capabilities?.vendor, "MAKER"],
    [host.programs?.qemu_version, "VERSION"],
    [host.version, "VERSION"],
  ].filter(/** @returns {pair is [string, string]} */ (pair) => typeof pair[0] === "string");
  await isSettled();
  window = await Window.open(browser, serving);
  page = await window.signedIn();
  page.setDefaultTimeout(SOON.timeout);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
});

after(async () => {
  await window?.close();
  await browser?.close();
  await serving?.remove();
});

/** Waits until the host has said what runs on it, and what each disk takes. */
async function isSettled() {
  const deadline = Date.now() + SETTLES_WITHIN_MS;
  for (;;) {
    const [host] = (await serving.asks("GET", "/v1/hosts")).items;
    const disks = (await serving.asks("GET", "/v1/volumes?limit=1000")).items;
    /** @type {Record<string, number>} */
    const contents = { alpha: 3, data1: 2 };
    const isRead = disks.every(
      (/** @type {any} */ { name, vm_name, space }) =>
        space?.contents.length === (contents[name ?? vm_name] ?? 1),
    );
    if (isRead && host.vms_running === 1) return;
    assert.ok(Date.now() < deadline, `not settled: ${JSON.stringify({ host, disks })}`);
    await new Promise((resolve) => setTimeout(resolve, 1_000));
  }
}

/** How often, one after the other, nothing is asked for on a screen that has everything. */
const QUIET_LOOKS = 3;
const LOOKS_MS = 50;

/** @param {string} address */
async function goes(address) {
  /** @type {Set<import("playwright-core").Request>} */
  const open = new Set();
  /** @param {import("playwright-core").Request} request */
  const isAsked = (request) =>
    request.url().includes("/v1/") && !request.url().includes("/v1/events");
  /** @param {import("playwright-core").Request} request */
  const begins = (request) => isAsked(request) && open.add(request);
  /** @param {import("playwright-core").Request} request */
  const ends = (request) => open.delete(request);
  page.on("request", begins);
  page.on("requestfinished", ends);
  page.on("requestfailed", ends);
  try {
    await page.goto(`${serving.origin}${address}`);
    await page.getByRole("heading", { level: 1 }).waitFor();
    await page.waitForFunction(() => document.querySelector(".waiting") === null);
    // Lists of choices come after the screen that offers them.
    for (let quiet = 0; quiet < QUIET_LOOKS; quiet = open.size === 0 ? quiet + 1 : 0)
      await page.waitForTimeout(LOOKS_MS);
  } finally {
    page.off("request", begins);
    page.off("requestfinished", ends);
    page.off("requestfailed", ends);
  }
}

/** What differs from run to run, in the order in which it is masked. @type {[RegExp, string][]} */
const VOLATILE = [
  [/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g, "ID"],
  [/\b[0-9a-f]{16,}\b/g, "HASH"],
  [/\b\d{1,2} [A-Z][a-z]{2} \d{4}, \d\d:\d\d(:\d\d)?( [A-Z]{3,4})?/g, "MOMENT"],
  [/- time: .*/g, "- time: TIME"],
  [/\b(in )?\d+ (d|h|min|s)\b( \d+ (h|min|s)\b)?( ago)?/g, "TIME"],
  [/\d+(\.\d+)? (B|KiB|MiB|GiB|TiB)(?![A-Za-z])/g, "SIZE"],
  [/\/licences-[\w-]+/g, "/licences-HASH"],
  [/\b\d+ \u00b7/g, "NUMBER \u00b7"],
  [/\b\d[\d,.]*( %|\/s)/g, "NUMBER$1"],
  [/\b\d[\d,.]* (shown of|operations|records|entries|events|tasks|of \d+)/g, "COUNT $1"],
];

/** What the machine has and does on which the test runs, on the screens that say so. */
const MACHINE = /** @type {Record<string, [RegExp, string][]>} */ ({
  "vm-performance": [
    [/- strong: .*/g, "- strong: FIGURE"],
    [/- '?img "([^:]+): .*"'?/g, '- img "$1: FIGURES"'],
  ],
  integrity: [[/definition: "\d+"/g, 'definition: "NUMBER"']],
  hosts: [
    [/row "hall1 .*"/g, 'row "hall1 ..."'],
    [/cell "(\d+|tcg|kvm|Safe|Prepared|Leaks|Began to leak)"/g, 'cell "..."'],
  ],
  host: [
    [/Connected (Safe|Prepared|Leaks|Began to leak)/, "Connected ..."],
    [
      /( *- heading "(Whether memory can reach a disk|Processor|Programs)" \[level=2\]\n)((?! {2}- region).*\n)*/g,
      "$1",
    ],
  ],
});

/** Lines of what has happened: the first two of each list stand for all of them. */
const LOGS = ["vm-activity", "tasks", "events", "audit", "access-sessions", "overview", "alarms"];

/** @param {string} tree */
function masked(tree) {
  const named = own.reduce((text, [from, to]) => text.replaceAll(from, to), tree);
  return VOLATILE.reduce((text, [pattern, to]) => text.replace(pattern, to), named);
}

/** Leaves out rows and items after the second of a list. @param {string} tree */
function firstOfLists(tree) {
  const kept = [];
  /** @type {{ indent: number, count: number }[]} */
  const lists = [];
  let hiddenBelow = Infinity;
  let navigation = Infinity;
  for (const line of tree.split("\n")) {
    const indent = line.length - line.trimStart().length;
    if (indent > hiddenBelow) continue;
    hiddenBelow = Infinity;
    while ((lists.at(-1)?.indent ?? -1) > indent) lists.pop();
    if (indent <= navigation) navigation = /^\s*- navigation\b/.test(line) ? indent : Infinity;
    if (indent <= navigation && /^\s*- (row|listitem)\b/.test(line)) {
      if (lists.at(-1)?.indent !== indent) lists.push({ indent, count: 0 });
      const list = lists.at(-1);
      if (list !== undefined && (list.count += 1) > 2) {
        hiddenBelow = indent;
        continue;
      }
    } else if (lists.at(-1)?.indent === indent) lists.pop();
    kept.push(line);
  }
  return kept.join("\n");
}

/** What a screen says, without what differs from run to run. @param {string} name */
async function treeOf(name) {
  const tree = masked(await page.locator("main").ariaSnapshot());
  const told = (MACHINE[name] ?? []).reduce(
    (text, [pattern, to]) => text.replace(pattern, to),
    `${tree}\n`,
  );
  return LOGS.includes(name) ? firstOfLists(told) : told;
}

test("each screen says what its committed accessibility tree says", async (context) => {
  if (TRANSCRIBES) {
    rmSync(TREES, { recursive: true, force: true });
    mkdirSync(TREES);
  }
  for (const [name, address] of Object.entries(SCREENS)) {
    await context.test(name, async () => {
      await goes(address);
      const file = join(TREES, `${name}.txt`);
      const tree = await treeOf(name);
      if (TRANSCRIBES) writeFileSync(file, tree);
      assert.ok(existsSync(file), `${file} is missing: run with STRONGROOM_TRANSCRIBE=1`);
      const committed = readFileSync(file, "utf8");
      if (tree === committed) return;
      // What a screen waits for may have come only now.
      await page.waitForFunction(() => document.querySelector(".waiting") === null);
      assert.equal(await treeOf(name), committed);
    });
  }
});

test("no accessibility tree is of a screen that is gone", () => {
  const known = Object.keys(SCREENS).map((name) => `${name}.txt`);
  assert.deepEqual(
    readdirSync(TREES).filter((file) => !known.includes(file)),
    [],
  );
});

/** What has the focus, and whether somebody sees that. */
function focused() {
  const element = document.activeElement;
  if (!(element instanceof HTMLElement) || element === document.body) return undefined;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  const isOutlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  const words = element.getAttribute("aria-label") ?? element.textContent ?? "";
  element.dataset["walked"] = "";
  return {
    words: `${element.tagName.toLowerCase()} ${words.trim().slice(0, 60)}`,
    isOutlined,
    isInSight: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
    isInDialog: element.closest("[role=dialog], [role=alertdialog]") !== null,
  };
}

/** What can be done on a screen, and was not reached. */
function notReached() {
  const all = document.querySelectorAll("a[href], button, input, select, textarea, summary");
  return [...all]
    .filter((element) => element instanceof HTMLElement)
    .filter(
      (element) =>
        element.checkVisibility() &&
        !element.matches(":disabled, [tabindex='-1']") &&
        element.closest("[inert], [aria-hidden=true], details:not([open]) > :not(summary)") ===
          null &&
        // Arrow keys go on from the one that has the focus.
        !(element instanceof HTMLInputElement && element.type === "radio" && !element.checked) &&
        element.closest("[role=grid]") === null &&
        !("walked" in element.dataset),
    )
    .map((element) => element.outerHTML.slice(0, 160));
}

const WALKED = {
  overview: "/",
  vms: "/vms",
  create: "/vms/new",
  vm: "/vms/alpha",
  "vm-disks": "/vms/alpha/disks",
  "vm-snapshots": "/vms/alpha/snapshots",
  "vm-keys": "/vms/alpha/keys",
  host: "/hosts/hall1",
  disks: "/disks",
  disk: "/disks/data1",
  datastore: "/datastores/vms",
  keys: "/keys/vms",
  policy: "/policies/gold",
  access: "/access",
  audit: "/audit",
  settings: "/settings",
  tasks: "/tasks",
};

test("Tab reaches every action of a screen, and one sees where it is", async (context) => {
  for (const [name, address] of Object.entries(WALKED)) {
    await context.test(name, async () => {
      await goes(address);
      const faults = [];
      let steps = 0;
      for (; steps < STEPS_MAX; steps += 1) {
        await page.keyboard.press("Tab");
        const at = await page.evaluate(focused);
        // Behind the last one is the browser's own window.
        if (at === undefined) break;
        if (!at.isOutlined) faults.push(`${at.words} shows no focus`);
        if (!at.isInSight) faults.push(`${at.words} is not in sight`);
      }
      assert.ok(steps < STEPS_MAX, "Tab comes to an end");
      assert.ok(steps > 10, "Tab begins at the top");
      assert.deepEqual([...faults, ...(await page.evaluate(notReached))], []);
    });
  }
});

/** How each dialog is opened by keys: the button, and the item of its list. */
const DIALOGS = [
  { address: "/vms/alpha", button: "Snapshot\u2026", dialog: "Snapshot of alpha" },
  { address: "/vms/alpha", button: "Stop\u2026", dialog: "Stop alpha" },
  { address: "/vms/alpha", button: "More for alpha", item: "Clone", dialog: "Clone alpha" },
  { address: "/vms/alpha", button: "More for alpha", item: "Delete", dialog: "Delete alpha" },
  { address: "/disks", button: "Create a disk\u2026", dialog: "Create a disk" },
  { address: "/disks/data1", button: "Actions for data1", item: "Grow", dialog: "Grow data1" },
  { address: "/networks", button: "Create a network\u2026", dialog: "Create a network" },
  { address: "/access", button: "Create a user\u2026", dialog: "Create a user" },
];

test("a dialog keeps the focus, and gives it back", async (context) => {
  for (const { address, button, item, dialog } of DIALOGS) {
    await context.test(dialog, async () => {
      await goes(address);
      const opener = page.getByRole("button", { name: button, exact: true }).first();
      await opener.focus();
      await page.keyboard.press("Enter");
      if (item !== undefined) {
        await page.getByRole("menuitem", { name: item }).focus();
        await page.keyboard.press("Enter");
      }
      const shown = page.getByRole("dialog", { name: dialog });
      await shown.waitFor();
      const ways = ["Tab", "Shift+Tab"];
      for (const key of ways) {
        for (let steps = 0; steps < 30; steps += 1) {
          await page.keyboard.press(key);
          const at = await page.evaluate(focused);
          assert.ok(at?.isInDialog, `${key} leaves the dialog at ${at?.words ?? "nothing"}`);
          assert.ok(at.isOutlined, `${at.words} shows no focus`);
        }
      }
      await page.keyboard.press("Escape");
      await shown.waitFor({ state: "detached" });
      await page.waitForFunction(() => document.activeElement !== document.body);
      assert.ok(
        await opener.evaluate((element) => element === document.activeElement),
        `the focus is at ${JSON.stringify(await page.evaluate(focused))}`,
      );
    });
  }
});

test("nothing has gone wrong meanwhile", () => assert.deepEqual(window.faults, []));
