// A VM whose key server is away: the page says what it waits for, and sees it start when that is back.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, picture, violations, Window } from "./browser.mjs";
import { KeyServer } from "./key-server.mjs";
import { Serving } from "./serving.mjs";

const SOON = { timeout: 60_000 };
const PROVIDER = "corp";

/** @type {Serving} */
let serving;
/** @type {KeyServer} */
let keys;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  serving = await Serving.prepare();
  keys = await KeyServer.behind(serving, PROVIDER);
  await serving.begin();
  browser = await launch();
  await serving.does("POST", "/v1/vms", {
    name: "alpha",
    memory_bytes: 64 * 1024 ** 2,
    disks: [{ size_bytes: 8 * 1024 ** 2 }],
    nics: [],
    encryption: { encrypted: true, provider: PROVIDER },
  });
});

after(async () => {
  await browser?.close();
  // A VM that waits for a key is not stopped before it has it.
  await keys?.begin().catch(() => undefined);
  await serving?.remove();
  await keys?.kill();
});

test("a key server that is away is said, with the next step, until it is back", async () => {
  const window = await Window.open(browser, serving);
  try {
    const page = await window.signedIn("/vms/alpha");
    const overview = await window.tab("/");
    await overview.getByRole("heading", { name: "Overview" }).waitFor();
    await page.getByRole("button", { name: "Start" }).waitFor(SOON);
    // What is set on a document is gone after a reload.
    const mark = () => Object.assign(document, { wasLoaded: "once" });
    await page.evaluate(mark);
    await keys.kill();

    await page.getByRole("button", { name: "Start" }).click();
    const status = await serving.asks("GET", "/v1/vms/alpha/key-status");
    const { key, provider } = status.keys[0];
    const bad = page.locator(".note-bad");
    await bad.getByText(`Waiting for key provider ${provider}, key ${key}`).waitFor(SOON);
    await bad
      .getByText(`it comes from key provider ${PROVIDER}, which is unavailable`)
      .waitFor(SOON);
    await bad.getByText(`strongroom key-provider test ${PROVIDER}`, { exact: false }).waitFor(SOON);
    await page
      .locator(".screen-line")
      .getByText("Waits for its key", { exact: true })
      .waitFor(SOON);
    await overview
      .getByText(`VM alpha waits for key provider ${provider}, key ${key}`)
      .waitFor(SOON);
    assert.deepEqual(await violations(page), []);
    assert.deepEqual(await violations(overview), []);
    await picture(page, "vm-waits-for-key");
    await picture(overview, "overview-waits-for-key");

    await keys.begin();
    await page.locator(".screen-line").getByText("Running").waitFor(SOON);
    await bad.waitFor({ ...SOON, state: "detached" });
    await overview
      .getByText("VM alpha waits for key provider")
      .waitFor({ ...SOON, state: "detached" });
    assert.equal(await page.evaluate(() => Reflect.get(document, "wasLoaded")), "once");
    assert.deepEqual(window.faults, []);
  } finally {
    await window.close();
  }
});
