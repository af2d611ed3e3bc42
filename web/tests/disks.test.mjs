// Disks, dumps and registrations in Chromium, against a real `strongroom serve`.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, picture, violations, Window } from "./browser.mjs";
import { Serving } from "./serving.mjs";

const SOON = { timeout: 30_000 };
const MIB = 1024 ** 2;

/** @type {Serving} */
let serving;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  serving = await Serving.start();
  browser = await launch();
  const small = { memory_bytes: 64 * MIB, disks: [{ size_bytes: 8 * MIB }], nics: [] };
  for (const name of ["alpha", "beta"]) await serving.does("POST", "/v1/vms", { ...small, name });
  await serving.does("POST", "/v1/vms/alpha/start");
});

after(async () => {
  await browser?.close();
  await serving?.remove();
});

/** @typedef {import("playwright-core").Page} Page */

/** @param {string} name @param {(page: Page) => Promise<void>} body */
function inPage(name, body) {
  test(name, async () => {
    const window = await Window.open(browser, serving);
    try {
      const page = await window.signedIn();
      await page.getByRole("heading", { name: "Overview" }).waitFor(SOON);
      page.setDefaultTimeout(SOON.timeout);
      await body(page);
      assert.deepEqual(window.faults, []);
    } finally {
      await window.close();
    }
  });
}

/** @param {Page} page @param {string} address */
const goes = (page, address) => page.goto(`${serving.origin}${address}`);

/**
 * Chooses from the list that a button opens.
 * @param {Page} page
 * @param {string} button
 * @param {string | RegExp} item
 */
async function chooses(page, button, item) {
  await page.getByRole("button", { name: button, exact: true }).click();
  await page.getByRole("menuitem", { name: item }).click();
}

/**
 * Submits the open dialog, and waits until it has closed.
 * @param {Page} page
 * @param {string} button
 */
async function submits(page, button) {
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("button", { name: button, exact: true }).click();
  await dialog.waitFor({ state: "detached" });
}

/** Waits until nothing works on what a screen shows. @param {Page} page */
const isIdle = (page) =>
  page.locator(".note-notice .meter, .note-notice .button").waitFor({ state: "detached" });

inPage(
  "a disk of no VM is made, kept as it was, cloned, given, taken back and deleted",
  async (page) => {
    await goes(page, "/disks");
    await page.getByRole("button", { name: "Create a disk" }).click();
    await page.getByLabel("Name", { exact: true }).last().fill("data1");
    await page.getByLabel("Size", { exact: true }).fill("8");
    await page.getByLabel("Size: unit").selectOption("MiB");
    await page.getByText("What this does").click();
    assert.equal(
      await page.locator(".code-line code").first().textContent(),
      "strongroom disk create data1 --size 8M",
    );
    await submits(page, "Create");
    await page.getByRole("link", { name: "data1" }).click();

    await chooses(page, "Actions for data1", "Snapshot");
    await page.getByRole("dialog").getByLabel("Name").fill("monday");
    await submits(page, "Make the snapshot");
    await page.getByRole("button", { name: "More for snapshot monday" }).waitFor();
    await isIdle(page);
    await picture(page, "disk-with-snapshot");

    await chooses(page, "Actions for data1", "Grow");
    await page.getByLabel("New size", { exact: true }).fill("16");
    await submits(page, "Grow");
    await page
      .getByRole("definition")
      .filter({ hasText: /^16 MiB$/ })
      .waitFor();
    await isIdle(page);

    await chooses(page, "More for snapshot monday", "Revert");
    await page.getByLabel("Is discarded").check();
    const revert = page.getByRole("dialog").getByRole("button", { name: "Revert", exact: true });
    assert.ok(await revert.isDisabled(), "nothing is discarded without its name");
    await page.getByLabel("Type data1 to confirm").fill("data1");
    await submits(page, "Revert");
    await page
      .getByRole("definition")
      .filter({ hasText: /^8 MiB$/ })
      .waitFor();
    await isIdle(page);

    await chooses(page, "More for snapshot monday", "Clone");
    await page.getByLabel("Name of the new disk").fill("data2");
    await submits(page, "Clone");
    await page.getByRole("button", { name: "Actions for data1" }).click();
    await page.getByText("It has snapshots.").waitFor();
    await page.keyboard.press("Escape");

    await goes(page, "/disks?owner=none");
    await page.getByRole("link", { name: "data2" }).click();
    await chooses(page, "Actions for data2", "Give it to a VM");
    await page.getByRole("dialog").getByLabel("VM").fill("nobody");
    await page.getByText("No VM that fits is called nobody.").waitFor();
    await page.getByRole("dialog").getByLabel("VM").fill("beta");
    await submits(page, "Give");
    await page.getByRole("heading", { name: "beta/disk1" }).waitFor();

    await goes(page, "/vms/beta/disks");
    await chooses(page, "More for disk1", "Take from the VM");
    await submits(page, "Take");
    await page.getByRole("heading", { name: "disk1" }).waitFor({ state: "detached" });

    await goes(page, "/disks?owner=none");
    await page.getByRole("link", { name: "data2" }).click();
    await chooses(page, "Actions for data2", "Delete");
    await page.getByLabel("Type data2 to confirm").fill("data2");
    await submits(page, "Delete");
    await page.getByRole("heading", { name: "Disks", level: 1 }).waitFor();
    await page.getByRole("link", { name: "data2" }).waitFor({ state: "detached" });
    assert.deepEqual(await violations(page), []);
  },
);

inPage("a refused change of a disk says why, and the form stays", async (page) => {
  await goes(page, "/disks");
  await page.getByRole("button", { name: "Create a disk" }).click();
  await page.getByLabel("Name", { exact: true }).last().fill("alpha");
  await page.getByLabel("Size", { exact: true }).fill("1");
  await page.getByRole("dialog").getByRole("button", { name: "Create", exact: true }).click();
  await page.getByRole("dialog").getByRole("alert").waitFor();
  assert.equal(await page.getByLabel("Name", { exact: true }).last().inputValue(), "alpha");
});

inPage("disks are found by their address, and by what they take", async (page) => {
  await goes(page, "/disks?q=alpha&seal=sealed");
  await page.getByRole("link", { name: "alpha/disk0" }).waitFor();
  assert.equal(await page.getByRole("row").count(), 2, "the head and one disk");
  await page.getByLabel("Protection").selectOption("clear");
  await page.getByText("No disk matches").waitFor();
  assert.equal(new URL(page.url()).search, "?q=alpha&seal=clear");
});

inPage("a guest's memory is dumped, and its dump deleted", async (page) => {
  await goes(page, "/vms/alpha/dumps");
  await page.getByText("It has no dump").waitFor();
  await page.getByRole("button", { name: "Dump" }).click();
  await page.getByLabel("Label").fill("hangs");
  await submits(page, "Dump");
  await page.getByRole("cell", { name: /hangs/ }).waitFor();
  await page.getByText(/vm dump open alpha [0-9]+ --to alpha-[0-9]+\.core/).waitFor();
  await isIdle(page);
  assert.deepEqual(await violations(page), []);
  await picture(page, "dumps");
  await page.getByRole("button", { name: /Delete dump/ }).click();
  await submits(page, "Delete");
  await page.getByText("It has no dump").waitFor();
});

inPage("a VM gets bounds to grow to, and another hardware, while it is off", async (page) => {
  await goes(page, "/vms/beta");
  await chooses(page, "More for beta", "Change\u2026");
  await page.getByLabel("Processors at most").fill("4");
  await page.getByRole("textbox", { name: /Memory at most/ }).fill("1");
  await page.getByRole("dialog").getByText("What this does").click();
  assert.equal(
    await page.locator(".code-line code").first().textContent(),
    "strongroom vm set beta --max-cpus 4 --max-memory 1G",
  );
  await page.keyboard.press("Escape");
  await chooses(page, "More for beta", "Change its hardware");
  await page.getByLabel("Processor", { exact: true }).fill("qemu64");
  await page.getByLabel("In this order").fill("disk0");
  await submits(page, "Change");
  await page.getByRole("definition").filter({ hasText: "qemu64" }).waitFor();
  await page.getByRole("definition").filter({ hasText: "from disk0" }).waitFor();
  await goes(page, "/vms/alpha");
  await chooses(page, "More for alpha", "Change\u2026");
  await page.getByText("It was started without bounds to grow to").waitFor();
});

inPage("a disk moves to another datastore", async (page) => {
  mkdirSync(join(serving.place, "fast"));
  await serving.does("POST", "/v1/datastores", { name: "fast", path: join(serving.place, "fast") });
  await goes(page, "/vms/beta/disks");
  await chooses(page, "More for disk0", "Move to another datastore");
  await page.getByRole("dialog").getByLabel("Datastore").selectOption("fast");
  await submits(page, "Move");
  await page
    .getByRole("definition")
    .filter({ hasText: /^fast$/ })
    .waitFor();
  await isIdle(page);
  await goes(page, "/disks?datastore=fast");
  await page.getByRole("link", { name: "beta/disk0" }).waitFor();
});

inPage("a VM goes into a folder", async (page) => {
  await serving.asks("POST", "/v1/folders", { name: "tenant1" });
  await goes(page, "/vms/beta");
  await chooses(page, "More for beta", "Move to a folder");
  await page.getByRole("dialog").getByLabel("Folder").selectOption("tenant1");
  await submits(page, "Move");
  await page
    .getByRole("definition")
    .filter({ hasText: /^tenant1$/ })
    .waitFor();
});

inPage("a VM is unregistered, and registered again from its datastore", async (page) => {
  await serving.does("POST", "/v1/vms", {
    name: "gone",
    memory_bytes: 64 * MIB,
    disks: [{ size_bytes: 8 * MIB }],
    nics: [],
    datastore: "vms",
  });
  await goes(page, "/vms/gone");
  await chooses(page, "More for gone", "Unregister");
  await submits(page, "Unregister");
  await page.getByRole("heading", { name: "VMs" }).waitFor();
  await page.getByRole("link", { name: "gone" }).waitFor({ state: "detached" });
  await goes(page, "/datastores/vms/contents");
  await page.getByRole("button", { name: "Register gone" }).click();
  await submits(page, "Register");
  await goes(page, "/vms/gone");
  await page.getByRole("heading", { name: "gone" }).waitFor();
});

inPage("a VM says who could read what it has", async (page) => {
  for (const [name, role, vm] of [
    ["grace", "administrator", "alpha"],
    ["hedy", "operator", "alpha"],
  ]) {
    await serving.asks("POST", "/v1/users", { name, password: "correct horse battery" });
    await serving.asks("POST", "/v1/grants", { user: name, role, scope: { type: "vm", vm } });
  }
  await goes(page, "/vms/alpha");
  await page.getByRole("link", { name: "Who could read what it has" }).click();
  await page.getByRole("link", { name: "grace" }).first().waitFor();
  const readers = page.getByRole("table", { name: "Who could read" });
  assert.equal(await readers.getByRole("row").count(), 2, "an operator reads no encrypted VM");
  await goes(page, "/access/review?vm=beta");
  await page.getByRole("heading", { name: "Who could read what beta has" }).waitFor();
  await page.getByText("No user, group or token").waitFor();
});
