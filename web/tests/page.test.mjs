// The page in Chromium, against a real `strongroom serve`.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, picture, signIn, violations, Window } from "./browser.mjs";
import { makeEstate, SCREENS } from "./screens.mjs";
import { Serving } from "./serving.mjs";
import { codeOf } from "./totp.mjs";

const SOON = { timeout: 30_000 };

/** @type {Serving} */
let serving;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  serving = await Serving.start();
  browser = await launch();
  await makeEstate(serving);
});

after(async () => {
  await browser?.close();
  await serving?.remove();
});

/**
 * @param {string} name
 * @param {(window: Window) => Promise<void>} body
 * @param {Parameters<typeof Window.open>[2]} [look]
 */
function inWindow(name, body, look) {
  test(name, async () => {
    const window = await Window.open(browser, serving, look);
    try {
      await body(window);
      assert.deepEqual(window.faults, []);
    } finally {
      await window.close();
    }
  });
}

for (const theme of /** @type {const} */ (["light", "dark"])) {
  for (const width of [390, 1280, 1920]) {
    inWindow(
      `every screen is accessible and fits: ${theme}, ${width} px`,
      async (window) => {
        const page = await window.tab();
        await page.getByRole("heading", { name: "Sign in" }).waitFor();
        assert.deepEqual(await violations(page), []);
        await picture(page, `sign-in-${theme}-${width}`);
        await signIn(page, serving.token);
        // A page that is left before its answer has no session, and every screen is the sign-in.
        await page.getByRole("heading", { name: "Overview" }).waitFor();
        const found = [];
        for (const [name, address] of Object.entries(SCREENS)) {
          await page.goto(`${serving.origin}${address}`);
          await page.getByRole("heading", { level: 1 }).waitFor();
          await page.waitForFunction(() => document.querySelector(".waiting") === null);
          for (const violation of await violations(page)) found.push(`${address}: ${violation}`);
          const beyond = await page.evaluate(
            () => document.documentElement.scrollWidth - innerWidth,
          );
          if (beyond > 0) found.push(`${address} is ${beyond} px wider than the window`);
          await picture(page, `${name}-${theme}-${width}`);
        }
        assert.deepEqual(found, []);
      },
      { theme, width, height: width < 500 ? 844 : width > 1500 ? 1080 : 800 },
    );
  }
}

inWindow(
  "who has no session gets no further, and a wrong token is refused with its request",
  async (window) => {
    const page = await window.tab("/vms/alpha");
    await signIn(page, "not-a-token");
    const alert = page.getByRole("alert");
    await alert.waitFor();
    assert.match((await alert.textContent()) ?? "", /request [0-9a-f]{16}/);
    assert.equal(await page.getByText("alpha").count(), 0);
    window.faults = window.faults.filter((fault) => !fault.includes("/v1/page-sessions"));
    await signIn(page, serving.token);
    await page.getByRole("heading", { name: "alpha" }).waitFor();
  },
);

inWindow("no secret is in the address, in storage or within reach of scripts", async (window) => {
  const page = await window.signedIn();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  const held = await page.evaluate(() =>
    JSON.stringify([
      location.href,
      document.cookie,
      { ...localStorage },
      { ...sessionStorage },
      document.documentElement.outerHTML,
    ]),
  );
  assert.ok(!held.includes(serving.token));
  assert.equal(await page.evaluate(() => document.cookie), "");
  const [cookie] = await window.context.cookies();
  assert.ok(
    cookie?.httpOnly && cookie.secure && cookie.sameSite === "Strict",
    JSON.stringify(cookie),
  );
});

inWindow(
  "a VM is made, started, snapshotted, stopped, reverted, cloned and deleted",
  async (window) => {
    const page = await window.signedIn("/vms/new");
    await page.getByLabel("Name", { exact: true }).fill("made");
    await page.getByLabel("Memory", { exact: true }).fill("64");
    await page.getByLabel("Memory: unit").selectOption("MiB");
    await page.getByLabel("Disk 0", { exact: true }).fill("8");
    await page.getByLabel("Disk 0: unit").selectOption("MiB");
    await page.getByLabel("Network", { exact: true }).selectOption("");
    await page.getByText("What this does").click();
    const line = await page.locator(".code-line code").first().textContent();
    assert.equal(line, "strongroom vm create made --cpus 2 --memory 64M --disk 8M --net none");
    await page.getByRole("button", { name: "Create", exact: true }).click();
    await page.getByRole("heading", { name: "made" }).waitFor(SOON);

    await page.getByRole("button", { name: "Start" }).click(SOON);
    await page.locator(".screen-line").getByText("Running").waitFor(SOON);
    await page.getByRole("button", { name: "Snapshot" }).click();
    await page.getByLabel("Name").fill("before");
    await page.getByRole("button", { name: "Make the snapshot" }).click();
    await page.getByRole("link", { name: "Snapshots 1" }).click(SOON);
    await page.getByText("before", { exact: true }).waitFor();

    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByLabel("Power off at once").check();
    await page.getByRole("dialog").getByRole("button", { name: "Stop" }).click();
    await page.locator(".screen-line").getByText("Off").waitFor(SOON);

    await page.getByRole("button", { name: "More for snapshot before" }).click();
    await page.getByRole("menuitem", { name: "Revert to it" }).click();
    await page.getByLabel("Is discarded").check();
    const submit = page.getByRole("dialog").getByRole("button", { name: "Revert" });
    assert.ok(await submit.isDisabled(), "nothing is discarded without its name");
    await page.getByLabel("Type made to confirm").fill("made");
    await submit.click();
    // The dialog has the same words; when it is gone, there is a task, which may not be shown yet.
    await page.getByRole("dialog").waitFor({ ...SOON, state: "detached" });
    await page.getByText("Revert made to before").first().waitFor(SOON);
    const { items } = await serving.asks("GET", "/v1/tasks?limit=1");
    await serving.asks("GET", `/v1/tasks/${items[0].id}?wait_s=60`);
    await page.waitForFunction(
      () => document.querySelector(".note-notice .meter, .note .button") === null,
    );

    await page.getByRole("button", { name: "More for made" }).click();
    await page.getByRole("menuitem", { name: "Clone" }).click();
    await page.getByLabel("Linked").check();
    await page.getByLabel("Content", { exact: true }).selectOption("before");
    await page.getByRole("dialog").getByRole("button", { name: "Clone" }).click();
    // Who leaves before the answer may leave the request behind.
    await page.getByRole("dialog").waitFor({ ...SOON, state: "detached" });
    await page.goto(`${serving.origin}/vms/made-clone`);
    await page.getByText("Linked clone of").waitFor(SOON);

    for (const name of ["made-clone", "made"]) {
      await page.goto(`${serving.origin}/vms/${name}`);
      await page.getByRole("button", { name: `More for ${name}`, exact: true }).click(SOON);
      await page.getByRole("menuitem", { name: "Delete" }).click();
      await page.getByLabel(`Type ${name} to confirm`).fill(name);
      await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
      await page.getByRole("heading", { name: "VMs" }).waitFor(SOON);
      await page.getByRole("link", { name, exact: true }).waitFor({ ...SOON, state: "detached" });
    }
  },
);

inWindow(
  "a VM is made with bounds to grow to, a processor, a group and a frontend",
  async (window) => {
    await serving.asks("POST", "/v1/placement-groups", { name: "spread", keep: "apart" });
    const page = await window.signedIn("/vms/new");
    await page.getByLabel("Name", { exact: true }).fill("grows");
    await page.getByLabel("Memory", { exact: true }).fill("256");
    await page.getByLabel("Memory: unit").selectOption("MiB");
    await page.getByLabel("Disk 0", { exact: true }).fill("8");
    await page.getByLabel("Disk 0: unit").selectOption("MiB");
    await page.getByLabel("Network", { exact: true }).selectOption("");
    const mostCpus = page.getByLabel("Most processors while it runs");
    await mostCpus.fill("1");
    await page.getByText("At least the 2 that it is started with.").waitFor();
    await mostCpus.fill("9999");
    await page.getByText("At most 240.").waitFor();
    await mostCpus.fill("4");
    const mostMemory = page.getByRole("textbox", { name: "Most memory while it runs" });
    await mostMemory.fill("128");
    await page.getByLabel("Most memory while it runs: unit").selectOption("MiB");
    await page.getByText("At least the 256 MiB that it is started with.").waitFor();
    await mostMemory.fill("512");
    await page.getByLabel("Processor that the guest sees").fill("x".repeat(65));
    await page.getByText("At most 64 characters.").waitFor();
    await page.getByLabel("Processor that the guest sees").fill("qemu64");
    await page.getByLabel("Placement group").selectOption("spread");
    await page.getByLabel("How the guest reaches its disks").selectOption("nbd");
    assert.deepEqual(await violations(page), []);
    await page.getByText("What this does").click();
    const line = (await page.locator(".code-line code").first().textContent()) ?? "";
    assert.equal(
      line,
      "strongroom vm create grows --cpus 2 --memory 256M --max-cpus 4 --max-memory 512M --processor qemu64 --disk 8M --frontend nbd --net none --placement-group spread",
    );
    await page.getByRole("button", { name: "Create", exact: true }).click();
    await page.getByRole("heading", { name: "grows" }).waitFor(SOON);
    const { items } = await serving.asks("GET", "/v1/tasks?limit=1");
    await serving.asks("GET", `/v1/tasks/${items[0].id}?wait_s=60`);
    const made = await serving.asks("GET", "/v1/vms/grows");
    assert.deepEqual(made.growth, { max_cpus: 4, max_memory_bytes: 512 * 1024 ** 2 });
    assert.equal(made.processor, "qemu64");
    assert.equal(made.disks[0].frontend, "nbd");
    const group = await serving.asks("GET", "/v1/placement-groups/spread");
    assert.deepEqual(
      group.vms.map((/** @type {any} */ { name }) => name),
      ["grows"],
    );
    await serving.does("DELETE", "/v1/vms/grows");
  },
);

inWindow("the command that is shown does what the button does", async (window) => {
  const page = await window.signedIn("/vms/beta");
  await page.getByRole("button", { name: "Snapshot" }).click(SOON);
  await page.getByLabel("Name").fill("by-hand");
  await page.getByText("What this does").click();
  const line = (await page.locator(".code-line code").first().textContent()) ?? "";
  await page.getByRole("button", { name: "Cancel" }).click();
  await serving.runs(line);
  await page.getByRole("link", { name: "Snapshots 1" }).waitFor(SOON);
  await serving.does("DELETE", "/v1/vms/beta/snapshots/by-hand");
  await page.getByRole("link", { name: "Snapshots 0" }).waitFor(SOON);
});

inWindow("VMs are found, selected and started by keyboard alone", async (window) => {
  const page = await window.signedIn();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.keyboard.press("Tab");
  assert.equal(
    await page.evaluate(() => document.activeElement?.textContent),
    "Skip to the content",
  );
  await page.keyboard.press("Control+k");
  await page.keyboard.type("VMs");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "VMs" }).waitFor();
  await page.waitForFunction(() => document.activeElement?.textContent === "VMs");
  const grid = page.getByRole("grid", { name: "VMs" });
  for (
    let steps = 0;
    !(await grid.evaluate((element) => element === document.activeElement));
    steps += 1
  ) {
    assert.ok(steps < 20, "the grid is reached with Tab");
    await page.keyboard.press("Tab");
  }
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Space");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Space");
  await page.getByText("2 VMs selected").waitFor();
  await page.keyboard.press("Escape");
  await page.getByText("2 VMs selected").waitFor({ state: "detached" });
  await page.keyboard.press("Home");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "alpha" }).waitFor();
});

inWindow("a user signs in by password and code, and sees what its role shows", async (window) => {
  const { totp_secret: secret } = await serving.asks("POST", "/v1/users", {
    name: "ada",
    password: "a long password",
  });
  await serving.asks("POST", "/v1/grants", {
    user: "ada",
    role: "operator",
    scope: { type: "vm", vm: "alpha" },
  });
  const page = await window.tab();
  await page.getByLabel("User").fill("ada");
  await page.getByLabel("Password", { exact: true }).last().fill("a long password");
  await page.getByLabel("Code").fill(codeOf(secret));
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Overview" }).waitFor(SOON);
  await page.goto(`${serving.origin}/vms`);
  await page.getByRole("link", { name: "alpha" }).waitFor(SOON);
  assert.equal(await page.getByRole("row").count(), 2, "the head and one VM");
  await page.getByRole("link", { name: "alpha" }).click();
  assert.ok(await page.getByRole("button", { name: "Stop" }).isEnabled());
  await page.getByRole("button", { name: "More for alpha" }).click();
  await page.getByText("Your roles lack delete.").waitFor();
});

inWindow("network cards, a schedule and a cryptoperiod are set", async (window) => {
  const page = await window.signedIn("/vms/gamma");
  await page.getByRole("button", { name: "Add a card" }).click(SOON);
  await page.getByRole("dialog").getByRole("button", { name: "Add", exact: true }).click();
  await page.getByRole("button", { name: "More for nic0" }).click(SOON);
  await page.getByRole("menuitem", { name: "Pull its cable" }).click();
  await page.getByText("without a cable").waitFor(SOON);
  await page.getByRole("link", { name: /^Snapshots/ }).click();
  await page.getByRole("button", { name: "Add a rule" }).click(SOON);
  await page.getByLabel("Snapshots to keep").fill("99");
  assert.ok(
    await page.getByRole("button", { name: "Set" }).isDisabled(),
    "the API keeps 26 at most",
  );
  await page.getByLabel("Snapshots to keep").fill("5");
  await page.getByRole("button", { name: "Set" }).click();
  await page.getByText("0 snapshots of 5 kept").waitFor(SOON);
  await page.getByLabel("Parts of gamma").getByRole("link", { name: "Keys" }).click();
  await page.getByRole("button", { name: "Cryptoperiod" }).click(SOON);
  await page.getByLabel("Days").fill("90");
  await page.getByRole("button", { name: "Set" }).click();
  await page.getByText("every 90 d").waitFor(SOON);
  assert.deepEqual(await violations(page), []);
});

inWindow("filters are in the address and outlive a reload", async (window) => {
  const page = await window.signedIn("/vms");
  await page.getByLabel("Protection").selectOption("clear");
  await page.getByRole("link", { name: "alpha" }).waitFor({ state: "detached" });
  assert.equal(new URL(page.url()).search, "?seal=clear");
  await page.reload();
  await page.getByRole("link", { name: "plain" }).waitFor();
  assert.equal(await page.getByRole("row").count(), 2);
});

inWindow("tabs share one stream of events, and both show what happens", async (window) => {
  const one = await window.signedIn("/vms/gamma");
  await one.locator(".screen-line").getByText("Off").waitFor();
  const other = await window.tab("/vms");
  await other.getByRole("link", { name: "gamma" }).waitFor();
  let streams = 0;
  other.on("request", (request) => {
    if (request.url().includes("/v1/events/stream")) streams += 1;
  });
  await serving.does("POST", "/v1/vms/gamma/start");
  await one.locator(".screen-line").getByText("Running").waitFor(SOON);
  await other.getByRole("row", { name: /gamma/ }).getByText("Running").waitFor(SOON);
  assert.equal(streams, 0, "the second tab reads no stream of its own");
  await one.close();
  await serving.does("POST", "/v1/vms/gamma/stop", { force: true });
  await other.getByRole("row", { name: /gamma/ }).getByText("Off").waitFor(SOON);
  assert.equal(streams, 1, "it goes on with one when the first is closed");
});

inWindow("what is deleted elsewhere is gone in every tab, and is not asked for", async (window) => {
  const small = { memory_bytes: 64 * 1024 ** 2, disks: [{ size_bytes: 8 * 1024 ** 2 }], nics: [] };
  for (const name of ["brief", "short"]) await serving.does("POST", "/v1/vms", { ...small, name });
  mkdirSync(join(serving.place, "spare"));
  for (const [path, body] of /** @type {const} */ ([
    ["/v1/networks", { name: "brief-lan" }],
    ["/v1/policies", { name: "brief-rules", rules: {} }],
    ["/v1/datastores", { name: "brief-store", path: join(serving.place, "spare") }],
  ]))
    await serving.does("POST", path, body);
  await serving.asks("POST", "/v1/placement-groups", { name: "brief-group", keep: "apart" });
  const vm = await serving.asks("GET", "/v1/vms/brief");
  const volume = vm.disks[0].volume;
  const list = await window.signedIn("/vms");
  await list.getByRole("link", { name: "brief", exact: true }).waitFor(SOON);
  await list.getByRole("link", { name: "short", exact: true }).waitFor(SOON);
  const tabs = [];
  for (const address of [
    "/vms/brief",
    `/vms/${vm.id}/snapshots`,
    `/disks/${volume}`,
    "/networks/brief-lan",
    "/policies/brief-rules",
    "/datastores/brief-store",
    "/placement-groups/brief-group",
  ]) {
    const tab = await window.tab(address);
    await tab.getByRole("heading", { level: 1 }).waitFor(SOON);
    await tab.waitForFunction(() => document.querySelector(".waiting") === null);
    assert.equal(await tab.getByText("No such page").count(), 0, address);
    tabs.push(tab);
  }
  const asked = /** @type {string[]} */ ([]);
  for (const path of [
    "/v1/vms/brief",
    "/v1/vms/short",
    "/v1/networks/brief-lan",
    "/v1/policies/brief-rules",
    "/v1/datastores/brief-store",
  ])
    await serving.does("DELETE", path);
  await serving.asks("DELETE", "/v1/placement-groups/brief-group");
  for (const tab of tabs) await tab.getByRole("heading", { name: "No such page" }).waitFor(SOON);
  for (const name of ["brief", "short"])
    await list.getByRole("link", { name, exact: true }).waitFor({ ...SOON, state: "detached" });
  // Later events do not ask for it either.
  window.context.on("request", (request) => asked.push(new URL(request.url()).pathname));
  await serving.does("PATCH", "/v1/vms/alpha", { notes: "after the deletions" });
  const events = await window.tab("/events");
  await events.getByText("VM alpha").first().waitFor(SOON);
  await list.bringToFront();
  assert.deepEqual(
    asked.filter(
      (path) => /brief|short/.test(path) || path.includes(vm.id) || path.includes(volume),
    ),
    [],
  );
  // Another one with the name of one that is gone is shown.
  await serving.does("POST", "/v1/vms", { ...small, name: "brief" });
  await tabs[0]?.getByRole("heading", { level: 1, name: "brief" }).waitFor(SOON);
  await list.getByRole("link", { name: "brief", exact: true }).waitFor(SOON);
  await serving.does("DELETE", "/v1/vms/brief");
  await tabs[0]?.getByRole("heading", { name: "No such page" }).waitFor(SOON);
});

inWindow("a session that ends in the middle of a form loses nothing", async (window) => {
  const page = await window.signedIn("/vms/beta");
  await page.getByRole("button", { name: "Snapshot" }).click(SOON);
  await page.getByLabel("Name").fill("kept");
  await serving.asks("DELETE", "/v1/page-sessions");
  await page.getByRole("button", { name: "Make the snapshot" }).click();
  const dialog = page.getByRole("alertdialog", { name: "Your session has ended" });
  await dialog.getByText("Then repeat: Snapshot kept of beta").waitFor(SOON);
  assert.equal(await page.getByLabel("Name").inputValue(), "kept");
  await picture(page, "session-ended");
  await signIn(dialog, serving.token);
  await page.getByRole("link", { name: "Snapshots 1" }).waitFor(SOON);
  window.faults = window.faults.filter((fault) => !fault.includes("401"));
});

inWindow("a server that is restarted is noticed, and found again", async (window) => {
  const page = await window.signedIn("/vms/beta");
  await page.getByText("Live", { exact: true }).waitFor();
  await serving.end();
  await page.getByText(/Not up to date since/).waitFor(SOON);
  await picture(page, "stale");
  await serving.begin();
  await serving.does("PATCH", "/v1/vms/beta", { notes: "after the restart" });
  await page.getByText("Live", { exact: true }).waitFor(SOON);
  await page.getByText("after the restart").waitFor(SOON);
  window.faults = window.faults.filter(
    (fault) =>
      !/ERR_CONNECTION_REFUSED|ERR_INCOMPLETE|ERR_NETWORK|ERR_EMPTY|ERR_CONNECTION/.test(fault),
  );
});

inWindow("a role sees what it may, and is told what it lacks", async (window) => {
  const made = await serving.asks("POST", "/v1/tokens", {
    name: "auditor1",
    role: "auditor",
    scope: { type: "site" },
    expires_unix_seconds: Math.floor(Date.now() / 1000) + 3600,
  });
  const page = await window.signedIn("/vms", made.token);
  await page.getByRole("link", { name: "alpha" }).waitFor();
  assert.equal(await page.getByRole("link", { name: "Create a VM" }).count(), 0);
  await page.getByRole("link", { name: "alpha" }).click();
  assert.ok(await page.getByRole("button", { name: "Stop" }).isDisabled());
  await page.getByRole("button", { name: "More for alpha" }).click();
  await page.getByText("Your roles lack delete.").waitFor();
});

inWindow("what others have written stays text", async (window) => {
  const script = `<img src=x onerror="alert('notes')"><script>alert('notes')</script>`;
  await serving.does("PATCH", "/v1/vms/beta", { notes: script });
  const page = await window.signedIn("/vms/beta");
  await page.getByText(script).waitFor(SOON);
  await page.goto(
    `${serving.origin}/vms?q=${encodeURIComponent(script)}&host=${encodeURIComponent(script)}`,
  );
  await page.getByText("No VM matches").waitFor(SOON);
  await page.goto(`${serving.origin}/vms/${encodeURIComponent(script)}`);
  await page.getByRole("heading", { name: "No such page" }).waitFor(SOON);
  assert.equal(await page.locator("img[src=x]").count(), 0);
  window.faults = window.faults.filter(
    (fault) => !fault.includes("(https") || !fault.includes("/v1/vms/%3C"),
  );
});

inWindow("who signs out is out, in every tab", async (window) => {
  const page = await window.signedIn();
  const other = await window.tab("/vms");
  await other.getByRole("link", { name: "alpha" }).waitFor();
  // A tab behind another one is drawn every few seconds, and a click waits for that.
  await page.bringToFront();
  await page.getByRole("button", { name: /Account of/ }).click();
  await page.getByRole("menuitem", { name: "Sign out", exact: true }).click();
  await page.getByRole("heading", { name: "Sign in" }).waitFor(SOON);
  await other.getByRole("heading", { name: "Sign in" }).waitFor(SOON);
  assert.deepEqual(await window.context.cookies(), []);
  window.faults = window.faults.filter((fault) => !fault.includes("401"));
});
