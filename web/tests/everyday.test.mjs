// Ten everyday tasks: how many clicks and typed fields they take. docs/page/TASKS.md has the
// numbers beside those of others, and a task that takes others fails here.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { launch, Window } from "./browser.mjs";
import { Serving } from "./serving.mjs";

const SOON = { timeout: 60_000 };
const MIB = 1024 ** 2;
const DOCUMENT = new URL("../../docs/page/TASKS.md", import.meta.url);

/** @typedef {import("playwright-core").Page} Page */

/** @type {Serving} */
let serving;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  serving = await Serving.start();
  browser = await launch();
  const small = { memory_bytes: 64 * MIB, disks: [{ size_bytes: 8 * MIB }], nics: [] };
  for (const name of ["web1", "image"]) await serving.does("POST", "/v1/vms", { ...small, name });
  await serving.does("POST", "/v1/vms/image/template");
});

after(async () => {
  await browser?.close();
  await serving?.remove();
});

/** Somebody at the list of VMs, whose hand is watched. */
class Hand {
  clicks = 0;
  fields = 0;

  /** @param {Page} page */
  constructor(page) {
    this.page = page;
  }

  /** @param {import("playwright-core").Locator} what */
  async clicksOn(what) {
    await what.click(SOON);
    this.clicks += 1;
  }

  /** @param {string | RegExp} name */
  link(name) {
    return this.clicksOn(
      this.page.getByRole("link", { name, exact: typeof name === "string" }).first(),
    );
  }

  /** @param {string | RegExp} name */
  button(name) {
    return this.clicksOn(
      this.page.getByRole("button", { name, exact: typeof name === "string" }).first(),
    );
  }

  /** @param {string | RegExp} name */
  item(name) {
    return this.clicksOn(this.page.getByRole("menuitem", { name }));
  }

  /** The button of the open dialog. @param {string} name */
  submits(name) {
    return this.clicksOn(this.page.getByRole("dialog").getByRole("button", { name, exact: true }));
  }

  /** @param {string} label @param {string} text */
  async types(label, text) {
    await this.page.getByRole("dialog").getByLabel(label).first().fill(text, SOON);
    this.fields += 1;
  }
}

/** Each task, in the order of the document: what is done, and how one sees that it is done. */
const TASKS = /** @type {[string, (hand: Hand, page: Page) => Promise<unknown>][]} */ ([
  [
    "Create a VM from an image",
    async (hand, page) => {
      await hand.link("image");
      await hand.button("Clone\u2026");
      await hand.types("Name of the new VM", "web2");
      await hand.submits("Clone");
      await page.getByText("Clone image as web2").waitFor(SOON);
      await isMade("web2");
    },
  ],
  [
    "Start it",
    async (hand, page) => {
      await hand.link("web1");
      await hand.button("Start");
      await page.locator(".screen-line").getByText("Running").waitFor(SOON);
    },
  ],
  [
    "Open its console",
    async (hand, page) => {
      await hand.link("web1");
      await hand.link("Console");
      await page.locator(".guest-bar").getByText("Connected", { exact: true }).waitFor(SOON);
    },
  ],
  [
    "Make a snapshot",
    async (hand, page) => {
      await hand.link("web1");
      await hand.button("Snapshot\u2026");
      await hand.submits("Make the snapshot");
      await page.getByRole("link", { name: "Snapshots 1" }).waitFor(SOON);
    },
  ],
  [
    "Revert to it",
    async (hand, page) => {
      await serving.does("POST", "/v1/vms/web1/stop", { force: true });
      await hand.link("web1");
      await hand.link(/^Snapshots/);
      await hand.button(/^Revert\u2026 to/);
      await hand.submits("Revert");
      await page.getByRole("link", { name: "Snapshots 2" }).waitFor(SOON);
    },
  ],
  [
    "Clone it",
    async (hand) => {
      await hand.link("web1");
      await hand.button("More for web1");
      await hand.item(/^Clone/);
      await hand.submits("Clone");
      await isMade("web1-clone");
    },
  ],
  [
    "Move it to another host",
    async (hand, page) => {
      await hand.link("web1");
      await hand.button("More for web1");
      await hand.item("Move to another host");
      await hand.submits("Move");
      // One machine has no other: what counts here is that it was asked for.
      await page.getByRole("dialog").getByRole("alert").waitFor(SOON);
    },
  ],
  [
    "Grow a disk",
    async (hand, page) => {
      await hand.link("web1");
      await hand.link("Disks 1");
      await hand.button("More for disk0");
      await hand.item("Grow");
      await hand.types("New size", "16");
      await hand.submits("Grow");
      await page
        .getByRole("definition")
        .filter({ hasText: /^16 MiB$/ })
        .waitFor(SOON);
    },
  ],
  [
    "See who may access it",
    async (hand, page) => {
      await hand.link("web1");
      await hand.link("Who could read what it has");
      await page.getByRole("heading", { name: "Who could read what web1 has" }).waitFor(SOON);
    },
  ],
  [
    "See which key protects it, and rotate that",
    async (hand, page) => {
      await hand.link("web1");
      await hand.clicksOn(page.getByLabel("Parts of web1").getByRole("link", { name: "Keys" }));
      await page.getByRole("table", { name: "Keys" }).waitFor(SOON);
      await hand.button(/^Rotate/);
      await hand.submits("Rotate");
      await page.getByText("Rotate the key of web1").waitFor(SOON);
    },
  ],
]);

/** Waits until a VM is there, and nothing works on it. @param {string} name */
async function isMade(name) {
  const deadline = Date.now() + SOON.timeout;
  for (;;) {
    const { items } = await serving.asks("GET", "/v1/vms?limit=1000");
    const vm = items.find((/** @type {any} */ each) => each.name === name);
    if (vm !== undefined && vm.task === undefined) return;
    assert.ok(Date.now() < deadline, `${name} is not there: ${JSON.stringify(items)}`);
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
}

/** What the document says of us. @returns {Map<string, string>} */
function documented() {
  const rows = readFileSync(DOCUMENT, "utf8").matchAll(/^\| \d+\. ([^|]+?) \| ([^|]+?) \|/gm);
  return new Map([...rows].map(([, task = "", ours = ""]) => [task, ours]));
}

for (const [name, does] of TASKS) {
  test(name, async () => {
    const window = await Window.open(browser, serving);
    try {
      const page = await window.signedIn("/vms");
      await page.getByRole("grid", { name: "VMs" }).waitFor(SOON);
      const hand = new Hand(page);
      await does(hand, page);
      const took = `${hand.clicks} + ${hand.fields}`;
      console.log(`${name}: ${took}`);
      assert.equal(took, documented().get(name));
      // A refusal is an answer, too, of which the browser writes a line.
      const faults = window.faults.filter((fault) => !/\/move|\/host/.test(fault));
      assert.deepEqual(faults, []);
    } finally {
      await window.close();
    }
  });
}

test("the document has these tasks and no others", () => {
  assert.deepEqual(
    [...documented().keys()],
    TASKS.map(([name]) => name),
  );
});
