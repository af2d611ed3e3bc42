// Keys of VMs by the page: renewed while the guest writes, and awaited while their server is away.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, picture, violations, Window } from "./browser.mjs";
import { HAS_GUEST, makeGuest } from "./guest.mjs";
import { Serving } from "./serving.mjs";
import { answers, countsBeyond, is, lastNumber, shows, SOON, types } from "./terminal.mjs";

const MIB = 1024 ** 2;
const DISK_BYTES = 96 * MIB;
/** What is there before: half of the disk, and its sum. */
const FILLS = "dd if=/dev/urandom of=/dev/vda bs=1M count=48 conv=fsync 2>/dev/null";
const SUMS = "dd if=/dev/vda bs=1M count=48 iflag=direct 2>/dev/null | md5sum";
/** The guest writes behind it all the time; each number is on the disk before it is said. */
const WRITES =
  "(n=0; while sleep 0.1; do n=$((n+1)); printf '%-4096d' $n | dd of=/dev/vda bs=4096 seek=20000 conv=notrunc,fsync 2>/dev/null && echo wrote-$n; done) &";
/** What the disk has of them, without the guest's cache. */
const WRITTEN =
  "echo has-$(($(dd if=/dev/vda bs=4096 skip=20000 count=1 iflag=direct 2>/dev/null | head -c 20)))";

/** @type {Serving} */
let serving;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  if (!HAS_GUEST) throw new Error("there is no guest: make guest, or set STRONGROOM_GUEST_DIR");
  serving = await Serving.start();
  browser = await launch();
  await makeGuest(serving, "guest", { disks: [{ size_bytes: DISK_BYTES }] });
  await serving.does("POST", "/v1/vms/guest/start");
});

after(async () => {
  await browser?.close();
  await serving?.remove();
});

const key = async () => {
  const { keys } = await serving.asks("GET", "/v1/vms/guest/key-status");
  assert.equal(keys.length, 1, JSON.stringify(keys));
  return keys[0].key;
};

test("keys are renewed while the guest writes, and its data is unharmed", async () => {
  const window = await Window.open(browser, serving);
  try {
    const console = await window.signedIn("/vms/guest/console");
    await is(console, "Connected");
    await shows(console, "#");
    await types(console, `${FILLS}; ${SUMS} > /before`);
    await answers(console, "filled");
    await types(console, WRITES);
    await countsBeyond(console, "wrote", 1);
    const page = await window.tab("/vms/guest/keys");
    const rotates = async (/** @type {string} */ what, /** @type {string} */ line) => {
      await page.getByRole("button", { name: "Rotate" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel(what).check();
      await dialog.getByText("What this does").click();
      await dialog.getByText(line, { exact: true }).waitFor();
      assert.deepEqual(await violations(page), []);
      await dialog.getByRole("button", { name: "Rotate", exact: true }).click();
      await dialog.waitFor({ state: "detached" });
    };

    // The key alone: the volumes' data keys are sealed under another one.
    const first = await key();
    await page.getByRole("cell", { name: first, exact: true }).waitFor(SOON);
    await rotates("The VM's key", "strongroom vm key rotate guest");
    await page
      .getByRole("cell", { name: first, exact: true })
      .waitFor({ ...SOON, state: "detached" });
    const second = await key();
    assert.notEqual(second, first);
    await page.getByRole("cell", { name: second, exact: true }).waitFor(SOON);
    const counted = await lastNumber(console, "wrote");
    await countsBeyond(console, "wrote", counted);

    // All data, under new data keys.
    const before = await serving.asks("GET", "/v1/vms/guest");
    await rotates("The data keys, too", "strongroom vm key rotate guest --data");
    const note = page.locator(".note-notice");
    const progress = note.getByRole("meter", { name: "Progress" });
    // A fast machine is through before anybody has looked.
    const isOver = async () => {
      const { items } = await serving.asks("GET", "/v1/tasks?limit=1");
      return items[0].kind === "vm_rotate_key" && items[0].state !== "running";
    };
    while (!(await progress.isVisible()) && !(await isOver())) await page.waitForTimeout(50);
    assert.deepEqual(await violations(page), []);
    await picture(page, "reencryption");
    const during = await lastNumber(console, "wrote");
    await countsBeyond(console, "wrote", during);
    await note.waitFor({ timeout: 300_000, state: "detached" });
    const { items } = await serving.asks("GET", "/v1/tasks?limit=1");
    assert.deepEqual([items[0].kind, items[0].state], ["vm_rotate_key", "done"]);
    const third = await key();
    assert.notEqual(third, second);
    await page.getByRole("cell", { name: third, exact: true }).waitFor(SOON);
    const now = await serving.asks("GET", "/v1/vms/guest");
    assert.ok(now.data_keys_unix_seconds > before.data_keys_unix_seconds);

    // It still writes; then what it has written is there, and so is what was there before.
    const last = await lastNumber(console, "wrote");
    await countsBeyond(console, "wrote", last);
    await types(console, "kill %1; wait; clear");
    await types(console, WRITTEN);
    await countsBeyond(console, "has", last);
    await types(console, `${SUMS} | cmp - /before && echo whole-$((40+2))`);
    await shows(console, "whole-42");
    assert.deepEqual(window.faults, []);
  } finally {
    await window.close();
  }
});
