// Attacks on the page, by those who write what it shows, and by pages of others in its browser.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, signIn, Window } from "./browser.mjs";
import { makeEstate, SCREENS } from "./screens.mjs";
import { Serving } from "./serving.mjs";

const SOON = { timeout: 30_000 };
const SESSION = "__Host-strongroom";
/** What a script would do that ran: a dialog, which is a fault, or a mark. */
const SCRIPT = `<img src=x onerror="alert(1)"><svg onload="document.owned=1">`;

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

/** Writes scripts wherever the API takes a text. Says which texts it has taken. */
async function writesScripts() {
  const small = { memory_bytes: 64 * 1024 ** 2, disks: [{ size_bytes: 8 * 1024 ** 2 }], nics: [] };
  const place = join(serving.place, SCRIPT.replaceAll("/", ""));
  mkdirSync(place);
  const group = { provider: "corp", group: SCRIPT };
  const kernel = join(serving.home, "hostd/boot", SCRIPT);
  const boot = { type: "kernel", kernel, initrd: kernel, arguments: SCRIPT };
  /** @type {[string, () => Promise<unknown>][]} */
  const writes = [
    ["notes", () => serving.does("PATCH", "/v1/vms/beta", { notes: SCRIPT })],
    ["tag", () => serving.does("PATCH", "/v1/vms/beta", { tags: { set: [SCRIPT], remove: [] } })],
    ["VM", () => serving.does("POST", "/v1/vms", { ...small, name: SCRIPT })],
    ["kernel", () => serving.does("POST", "/v1/vms", { ...small, name: "hostile", boot })],
    ["start", () => serving.does("POST", "/v1/vms/hostile/start")],
    [
      "image",
      () => serving.does("PATCH", "/v1/vms/gamma", { cdrom: { type: "image", path: kernel } }),
    ],
    ["start", () => serving.does("POST", "/v1/vms/gamma/start")],
    ["snapshot", () => serving.does("POST", "/v1/vms/beta/snapshots", { name: SCRIPT })],
    ["dump", () => serving.does("POST", "/v1/vms/alpha/dumps", { label: SCRIPT })],
    ["datastore", () => serving.does("POST", "/v1/datastores", { name: "hostile", path: place })],
    [
      "policy",
      () =>
        serving.asks("POST", "/v1/policies", { name: "hostile", description: SCRIPT, rules: {} }),
    ],
    ["policy's name", () => serving.asks("POST", "/v1/policies", { name: SCRIPT, rules: {} })],
    ["network", () => serving.does("POST", "/v1/networks", { name: SCRIPT, vlan: 7 })],
    ["folder", () => serving.asks("POST", "/v1/folders", { name: SCRIPT })],
    [
      "user",
      () => serving.asks("POST", "/v1/users", { name: SCRIPT, password: "correct horse battery" }),
    ],
    [
      "group",
      () => serving.asks("POST", "/v1/grants", { group, role: "auditor", scope: { type: "site" } }),
    ],
    [
      "recipient",
      () =>
        serving.asks("POST", "/v1/recipients", {
          name: "hook",
          to: { type: "webhook", url: `https://127.0.0.1:9/${SCRIPT}` },
        }),
    ],
    [
      "sign-in",
      () =>
        serving.asks(
          "POST",
          "/v1/sessions",
          { user: SCRIPT, password: SCRIPT, code: "123456" },
          "",
        ),
    ],
    [
      "emergency",
      async () => {
        const { secret } = await serving.asks("POST", "/v1/emergency-credentials", {
          name: "envelope",
        });
        await serving.asks("POST", "/v1/emergency-sessions", { secret, reason: SCRIPT }, "");
      },
    ],
  ];
  const taken = /** @type {string[]} */ ([]);
  for (const [name, write] of writes) {
    await write().then(
      () => taken.push(name),
      () => undefined,
    );
  }
  return taken;
}

test("no script that others have written runs on any screen", async () => {
  const taken = await writesScripts();
  for (const name of ["notes", "policy", "emergency"])
    assert.ok(taken.includes(name), `no script is in ${name}, only in ${taken}`);
  const window = await Window.open(browser, serving);
  try {
    const page = await window.signedIn();
    await page.getByRole("heading", { name: "Overview" }).waitFor(SOON);
    const own = [
      "/vms/beta",
      "/vms/hostile",
      "/vms/hostile/activity",
      "/vms/gamma",
      "/vms/alpha/dumps",
    ];
    own.push("/datastores/hostile", "/datastores/hostile/contents", "/policies/hostile");
    own.push(
      `/audit?by=${encodeURIComponent(SCRIPT)}`,
      `/access/users/${encodeURIComponent(SCRIPT)}`,
    );
    own.push(`/vms/${encodeURIComponent(SCRIPT)}`, `/sign-in/${encodeURIComponent(SCRIPT)}`);
    let seen = 0;
    for (const address of [...Object.values(SCREENS), ...own]) {
      await page.goto(`${serving.origin}${address}`);
      await page.getByRole("heading", { level: 1 }).waitFor(SOON);
      await page.waitForFunction(() => document.querySelector(".waiting") === null);
      const found = await page.evaluate(() => [
        document.querySelectorAll("img[src=x], svg[onload]").length,
        Reflect.get(document, "owned") ?? 0,
        document.body.innerText.includes("onerror=") ? 1 : 0,
      ]);
      assert.deepEqual(found.slice(0, 2), [0, 0], address);
      seen += found[2];
    }
    assert.ok(seen >= taken.length / 2, `scripts are seen as text on ${seen} screens; ${taken}`);
    // What is not there is asked for once.
    window.faults = window.faults.filter((fault) => !/404|\/sign-in-ways/.test(fault));
    assert.deepEqual(window.faults, []);
  } finally {
    await window.close();
  }
});

/**
 * Serves a page from another port of this machine: the same site for cookies, another origin.
 * @param {string} html
 * @param {(origin: string) => Promise<void>} body
 */
async function withEvil(html, body) {
  const server = createServer((_, answer) => {
    answer.setHeader("Content-Type", "text/html");
    answer.end(`<!doctype html><title>evil</title>${html}`);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(undefined)));
  const address = server.address();
  const port = typeof address === "object" && address ? address.port : 0;
  try {
    await body(`http://127.0.0.1:${port}`);
  } finally {
    server.close();
    server.closeAllConnections();
  }
}

/** A browser in which an administrator is signed in. @returns {Promise<Window>} */
async function signedInWindow() {
  const window = await Window.open(browser, serving);
  const page = await window.signedIn();
  await page.getByRole("heading", { name: "Overview" }).waitFor(SOON);
  return window;
}

test("a page of somebody else does not show this one in a frame", async () => {
  const window = await signedInWindow();
  try {
    await withEvil(
      `<iframe id=f src="${serving.origin}/vms/alpha" width=900 height=600></iframe>`,
      async (origin) => {
        const page = await window.context.newPage();
        await page.goto(origin);
        const frame = page.frames().find((each) => each !== page.mainFrame());
        assert.ok(frame !== undefined);
        assert.ok(!frame.url().startsWith(serving.origin), frame.url());
        assert.equal(await frame.getByText("alpha").count(), 0);
      },
    );
  } finally {
    await window.close();
  }
});

test("a page of somebody else changes nothing in the name of who is signed in", async () => {
  const window = await signedInWindow();
  try {
    const { origin } = serving;
    await withEvil(
      `<form id=f method=post action="${origin}/v1/vms/beta/start" enctype="text/plain"><input name='{"paused":true,"x":"' value='"}'></form>`,
      async (evil) => {
        const page = await window.context.newPage();
        await page.goto(evil);
        const answers = await page.evaluate(async (target) => {
          const ways = [
            { method: "POST", credentials: "include", mode: "no-cors", body: "{}" },
            { method: "POST", credentials: "include", body: "{}" },
            {
              method: "POST",
              credentials: "include",
              body: "{}",
              headers: { "Content-Type": "application/json", "Strongroom-Page": "1" },
            },
          ];
          const found = [];
          for (const way of ways) {
            const asked = fetch(`${target}/v1/vms/beta/start`, /** @type {RequestInit} */ (way));
            found.push(
              await asked.then(
                ({ type, status }) => `${type} ${status}`,
                () => "failed",
              ),
            );
          }
          const read = fetch(`${target}/v1/vms`, { credentials: "include" });
          found.push(await read.then((answer) => `read ${answer.status}`).catch(() => "failed"));
          const socket = new WebSocket(`${target.replace("https", "wss")}/relay`, ["ticket"]);
          found.push(
            await new Promise((resolve) => {
              socket.onopen = () => resolve("open");
              socket.onerror = () => resolve("failed");
            }),
          );
          return found;
        }, origin);
        assert.deepEqual(answers, ["failed", "failed", "failed", "failed", "failed"]);
        // A form may be sent anywhere, and takes the browser along.
        const sent = page.waitForResponse(/v1\/vms\/beta\/start/);
        await page.evaluate(() => /** @type {any} */ (document.querySelector("#f")).submit());
        assert.equal((await sent).status(), 401);
      },
    );
    const vm = await serving.asks("GET", "/v1/vms/beta");
    assert.deepEqual([vm.power, vm.task ?? null], ["stopped", null]);
    const { items } = await serving.asks("GET", "/v1/tasks?limit=100");
    const started = (/** @type {any} */ { kind, object }) =>
      kind === "vm_start" && object.name === "beta";
    assert.equal(items.filter(started).length, 0);
  } finally {
    await window.close();
  }
});

test("a session that was there before signing in is not the one afterwards", async () => {
  const window = await Window.open(browser, serving);
  const theirs = await signedInWindow();
  try {
    // Somebody puts a session of their own, and one that they have made up, into the browser.
    const [own] = (await theirs.context.cookies()).filter(({ name }) => name === SESSION);
    assert.ok(own !== undefined);
    for (const planted of [own.value, "A".repeat(own.value.length)]) {
      await window.context.clearCookies();
      await window.context.addCookies([
        { name: SESSION, value: planted, url: serving.origin, secure: true, httpOnly: true },
      ]);
      const page = await window.tab("/about");
      if (planted === own.value) {
        // It is theirs, and says so; who signs in there signs out first.
        await page.getByRole("heading", { name: "About" }).waitFor(SOON);
        await page.getByRole("button", { name: /Account of/ }).click();
        await page.getByRole("menuitem", { name: "Sign out", exact: true }).click();
      }
      await page.getByRole("heading", { name: "Sign in" }).waitFor(SOON);
      await signIn(page, serving.token);
      await page.getByRole("heading", { name: /About|Overview/ }).waitFor(SOON);
      const [now] = (await window.context.cookies()).filter(({ name }) => name === SESSION);
      assert.ok(now !== undefined && now.value !== planted);
      await page.close();
    }
    window.faults = window.faults.filter((fault) => !fault.includes("401"));
    assert.deepEqual(window.faults, []);
  } finally {
    await theirs.close();
    await window.close();
  }
});

test("no secret of a browser is in an address, in storage, in a cache or in what the server says", async () => {
  const window = await Window.open(browser, serving);
  try {
    /** @type {string[]} */
    const addresses = [];
    window.context.on("request", (request) => addresses.push(request.url()));
    const page = await window.signedIn("/vms");
    await page.getByRole("link", { name: "alpha" }).waitFor(SOON);
    const [cookie] = (await window.context.cookies()).filter(({ name }) => name === SESSION);
    const secrets = [serving.token, String(cookie?.value)];
    const held = await page.evaluate(async () => {
      const databases = await indexedDB.databases();
      const cached = await caches.keys();
      const workers = await navigator.serviceWorker.getRegistrations();
      return JSON.stringify([
        { ...localStorage },
        { ...sessionStorage },
        history.state,
        document.cookie,
        databases.map(({ name }) => name),
        cached,
        workers.length,
      ]);
    });
    for (const secret of secrets) {
      assert.ok(secret.length > 20);
      assert.ok(!held.includes(secret), held);
      assert.ok(!addresses.some((address) => address.includes(secret)));
      assert.ok(!serving.said.includes(secret), "it is in the server's log");
    }
    assert.match(held, /\[\],\[\],0\]$/, "no database, no cache, no worker");
  } finally {
    await window.close();
  }
});
