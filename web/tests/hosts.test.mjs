// A guest that runs moves between two hosts, by the page: `scripts/page guests`, as root.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, picture, violations, Window } from "./browser.mjs";
import { HAS_GUEST, makeGuest } from "./guest.mjs";
import { Cable, FIRST_OPTIONS, SecondHost } from "./machines.mjs";
import { Serving } from "./serving.mjs";
import { answers, countsBeyond, is, lastNumber, shows, SOON, types } from "./terminal.mjs";

/** What a guest cannot be without: its memory has to be sent. */
const FILLS = "head -c 30000000 /dev/urandom > /full; md5sum < /full > /sum";
const WHOLE = "md5sum < /full | cmp - /sum && echo whole-$((40+2))";
const COUNTS = "(n=0; while sleep 0.2; do n=$((n+1)); echo tick-$n; done) &";
/** As slow as a person can press a button before it is over. */
const SLOWLY = 1024 ** 2;

/** @type {Serving} */
let serving;
/** @type {Cable | undefined} */
let cable;
/** @type {SecondHost | undefined} */
let second;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  if (!HAS_GUEST) throw new Error("there is no guest: make guest, or set STRONGROOM_GUEST_DIR");
  cable = await Cable.lay();
  serving = await Serving.start(FIRST_OPTIONS);
  second = await SecondHost.join(serving, cable);
  browser = await launch();
  await makeGuest(serving, "guest", { host: "hall1" });
  await serving.does("POST", "/v1/vms/guest/start");
});

after(async () => {
  await browser?.close();
  await serving?.remove();
  await second?.end();
  await cable?.cut();
});

const power = async () => {
  const { host, power: state } = await serving.asks("GET", "/v1/vms/guest");
  return `${state} on ${host}`;
};

test("a guest that runs moves to another host, and its console goes on", async () => {
  const window = await Window.open(browser, serving);
  try {
    const console = await window.signedIn("/vms/guest/console");
    await is(console, "Connected");
    await shows(console, "#");
    await types(console, FILLS);
    await answers(console, "filled");
    await types(console, COUNTS);
    await countsBeyond(console, "tick", 1);
    const page = await window.tab("/vms/guest");
    const facts = page.locator(".facts");
    await facts.getByText("hall1", { exact: true }).first().waitFor(SOON);

    // Once it is cancelled in the middle, and stays where it is.
    await serving.asks("POST", "/v1/vms/guest/host", {
      host: "host2",
      bytes_per_second: SLOWLY,
    });
    const note = page.locator(".note-notice");
    await note.getByText("Move host guest").waitFor(SOON);
    await note.getByRole("meter", { name: "Progress" }).waitFor(SOON);
    assert.deepEqual(await violations(page), []);
    await picture(page, "migration");
    const before = await lastNumber(console, "tick");
    await note.getByRole("button", { name: "Cancel" }).click();
    await note.waitFor({ ...SOON, state: "detached" });
    await page.getByRole("link", { name: "Activity" }).click();
    await page.getByText("Cancelled", { exact: true }).first().waitFor(SOON);
    await countsBeyond(console, "tick", before);
    assert.equal(await power(), "running on hall1");

    // Then it moves.
    await page.getByRole("link", { name: "Summary" }).click();
    await page.getByRole("button", { name: "More for guest" }).click();
    await page.getByRole("menuitem", { name: /Move to another host/ }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Host", { exact: true }).selectOption("host2");
    await dialog.getByLabel(/Longest pause/).fill("2000");
    await dialog.getByText("What this does").click();
    await dialog
      .getByText("strongroom vm migrate guest --to host2 --pause-ms 2000", { exact: true })
      .waitFor();
    assert.deepEqual(await violations(page), []);
    await picture(page, "migrate-dialog");
    const counted = await lastNumber(console, "tick");
    await dialog.getByRole("button", { name: "Move", exact: true }).click();
    await facts.getByText("host2", { exact: true }).first().waitFor({ timeout: 180_000 });
    assert.equal(await power(), "running on host2");
    await is(console, "Connected");
    await countsBeyond(console, "tick", counted);
    await types(console, "kill %1");
    await types(console, WHOLE);
    await shows(console, "whole-42");
    assert.equal(window.faults.filter((fault) => !/WebSocket connection to/.test(fault)).length, 0);
  } finally {
    await window.close();
  }
});
