// The consoles and screens of the page, against a real guest. One VM runs at a time.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { launch, picture, signIn, violations, Window } from "./browser.mjs";
import { HAS_GUEST, makeGuest } from "./guest.mjs";
import { Serving } from "./serving.mjs";
import { answers, is, shows, SOON, types } from "./terminal.mjs";

const CONSOLE = "/vms/guest/console";

/** @type {Serving} */
let serving;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  if (!HAS_GUEST) throw new Error("there is no guest: make guest, or set STRONGROOM_GUEST_DIR");
  serving = await Serving.start();
  browser = await launch();
  await makeGuest(serving, "guest");
  await serving.does("POST", "/v1/vms", {
    name: "blind",
    vnc: false,
    memory_bytes: 64 * 1024 ** 2,
    disks: [{ size_bytes: 8 * 1024 ** 2 }],
    nics: [],
  });
  await serving.asks("POST", "/v1/policies", {
    name: "no-browsers",
    rules: { browser_console_denied: true },
  });
  await serving.does("POST", "/v1/vms", {
    name: "closed",
    policy: "no-browsers",
    memory_bytes: 64 * 1024 ** 2,
    disks: [{ size_bytes: 8 * 1024 ** 2 }],
    nics: [],
  });
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

/** @typedef {import("playwright-core").Page} Page */

/**
 * A tab at an address, as it is after a reload.
 * @param {Window} window
 * @param {string} address
 * @param {string} [token]
 */
async function signedIn(window, address, token = serving.token) {
  const page = await window.signedIn("/about", token);
  await page.getByRole("heading", { level: 1, name: "About" }).waitFor(SOON);
  await page.goto(`${serving.origin}${address}`);
  return page;
}

/** Clicks on a text that the terminal shows. @param {Page} page @param {string} text */
async function click(page, text) {
  const at = await page.evaluate((wanted) => {
    const texts = document.createTreeWalker(
      document.querySelector(".xterm-rows") ?? document,
      NodeFilter.SHOW_TEXT,
    );
    let found;
    for (let node = texts.nextNode(); node !== null; node = texts.nextNode()) {
      const start = (node.nodeValue ?? "").lastIndexOf(wanted);
      if (start < 0) continue;
      const range = document.createRange();
      range.setStart(node, start + 2);
      range.setEnd(node, start + 3);
      const { x, y, width, height } = range.getBoundingClientRect();
      found = { x: x + width / 2, y: y + height / 2 };
    }
    return found;
  }, text);
  assert.ok(at !== undefined, `${text} is shown`);
  await page.mouse.move(at.x - 30, at.y + 60);
  await page.mouse.move(at.x, at.y, { steps: 5 });
  await page.mouse.click(at.x, at.y);
}

/** The processes that carry guest data of this server. */
function relays() {
  const found = /** @type {number[]} */ ([]);
  const walk = (/** @type {number} */ pid) => {
    for (const task of readdirSync(`/proc/${pid}/task`)) {
      const children = readFileSync(`/proc/${pid}/task/${task}/children`, "utf8").trim();
      for (const child of children === "" ? [] : children.split(" ").map(Number)) {
        if (readFileSync(`/proc/${child}/cmdline`, "utf8").includes("guest-relay"))
          found.push(child);
        walk(child);
      }
    }
  };
  walk(serving.pid ?? 0);
  return found;
}

/** Faults that losing a connection is expected to leave. @param {Window} window */
function forgetLost(window) {
  window.faults = window.faults.filter((fault) => !/WebSocket connection to/.test(fault));
}

inWindow("a VM that is off is started from its console, which then answers", async (window) => {
  const page = await signedIn(window, CONSOLE);
  await is(page, "VM is off");
  await page.getByText("guest is off").waitFor();
  assert.deepEqual(await violations(page), []);
  await picture(page, "console-off");
  await page.getByRole("button", { name: "Start" }).click();
  await is(page, "Connected");
  await shows(page, "#");
  await answers(page, "hello");
  await page.getByText("strongroom vm console guest", { exact: true }).waitFor();
  const { items } = await serving.asks("GET", "/v1/events?limit=100");
  assert.ok(items.some((/** @type {any} */ { kind }) => kind === "vm.console_opened"));
});

inWindow("of two tabs one writes, and the other can take over", async (window) => {
  const one = await signedIn(window, CONSOLE);
  await is(one, "Connected");
  await answers(one, "first");
  const other = await window.tab(CONSOLE);
  await is(other, "Looking only");
  await other.getByText("Looking only: somebody else writes").waitFor();
  await shows(other, "first-42");
  await types(other, "echo not-$((40+2))");
  await picture(other, "console-read-only");
  assert.deepEqual(await violations(other), []);
  await answers(one, "still");
  await shows(other, "still-42");
  assert.doesNotMatch(await one.locator(".xterm-rows").innerText(), /not-42/);
  await other.getByRole("button", { name: "Take over" }).click();
  await is(other, "Connected");
  await is(one, "Looking only");
  await one.getByText("Another tab has taken over").waitFor();
  await answers(other, "second");
  await shows(one, "second-42");
});

inWindow(
  "another browser takes a console over, and who wrote is told and reads",
  async (window) => {
    const one = await signedIn(window, CONSOLE);
    await is(one, "Connected");
    await answers(one, "mine");
    const stranger = await Window.open(browser, serving);
    try {
      const other = await signedIn(stranger, CONSOLE);
      await is(other, "Looking only");
      await shows(other, "mine-42");
      await other.locator(".terminal-former").waitFor({ state: "attached" });
      await other.getByRole("button", { name: "Take over" }).click();
      await is(other, "Connected");
      await shows(one, "has taken over this console");
      await is(one, "Looking only");
      await one.getByText(/^Looking only: .+ has taken over$/).waitFor();
      assert.deepEqual(await violations(one), []);
      await picture(one, "console-taken");
      await answers(other, "theirs");
      await shows(one, "theirs-42");
      await types(one, "echo not-$((40+2))");
      await answers(other, "again");
      assert.doesNotMatch(await other.locator(".xterm-rows").innerText(), /not-42/);
      const { items } = await serving.asks("GET", "/v1/access/log?limit=100");
      assert.ok(
        items.some((/** @type {any} */ { message }) =>
          message.includes("is taken over from who writes"),
        ),
      );
      // It is taken back, and the other one is told.
      await one.getByRole("button", { name: "Take over again" }).click();
      await is(one, "Connected");
      await is(other, "Looking only");
      await answers(one, "back");
      assert.deepEqual(stranger.faults, []);
    } finally {
      await stranger.close();
    }
  },
);

inWindow("a guest cannot pretend that somebody has taken over", async (window) => {
  const page = await signedIn(window, CONSOLE);
  await is(page, "Connected");
  const made = "0123456789abcdef0123456789abcdef";
  await types(
    page,
    `printf '\\033]7341;;eve\\007\\033]7341;${made};eve\\007\\n[strongroom: eve has taken over]\\n'`,
  );
  await shows(page, "eve has taken over");
  await answers(page, "mine");
  await is(page, "Connected");
  assert.equal(await page.getByText("Looking only").count(), 0);
});

inWindow(
  "a console that is only looked at takes nothing, and nothing from anybody",
  async (window) => {
    const page = await signedIn(window, "/vms/guest");
    await page.getByRole("button", { name: "More for guest" }).click(SOON);
    await page.getByRole("menuitem", { name: "Look at its console only" }).click();
    await is(page, "Looking only");
    assert.equal(new URL(page.url()).search, "?look=only");
    await page.getByText("strongroom vm console guest --read-only", { exact: true }).waitFor();
    await types(page, "echo not-$((40+2))");
    const other = await window.tab(CONSOLE);
    await is(other, "Connected");
    await answers(other, "writes");
    await shows(page, "writes-42");
    assert.doesNotMatch(await page.locator(".xterm-rows").innerText(), /not-42/);
    assert.deepEqual(await violations(page), []);
    await picture(page, "console-look");
    await other.close();
    await page.getByRole("button", { name: "Type", exact: true }).click();
    await is(page, "Connected");
    await answers(page, "typed");
  },
);

inWindow("a relay that is killed is started anew, and the page finds it", async (window) => {
  const page = await signedIn(window, CONSOLE);
  await is(page, "Connected");
  await answers(page, "before");
  const [relay] = relays();
  assert.ok(relay !== undefined, "a process carries the console");
  const again = page.waitForEvent("websocket", SOON);
  process.kill(relay, "SIGKILL");
  await again;
  await is(page, "Connected");
  await answers(page, "after");
  assert.notEqual(relays()[0], relay);
  forgetLost(window);
});

inWindow("a server that is restarted is found again by its consoles", async (window) => {
  const page = await signedIn(window, CONSOLE);
  await is(page, "Connected");
  await serving.end();
  await page.getByText(/It is tried again at/).waitFor(SOON);
  await picture(page, "console-lost");
  await serving.begin();
  await is(page, "Connected");
  await answers(page, "again");
  window.faults = window.faults.filter((fault) => !/ERR_|WebSocket connection to/.test(fault));
});

inWindow("what a hostile guest writes does nothing but appear", async (window) => {
  await window.context.grantPermissions(["clipboard-read", "clipboard-write"], {
    origin: serving.origin,
  });
  const page = await signedIn(window, CONSOLE);
  await is(page, "Connected");
  await page.evaluate(() => navigator.clipboard.writeText("mine"));
  const title = await page.title();
  const size = page.viewportSize();
  const hostile = [
    "\\033]0;owned\\007\\033]2;owned\\007\\033]1;owned\\007",
    "\\033]52;c;b3duZWQ=\\007\\033]52;p;b3duZWQ=\\007",
    "\\033]8;;javascript:alert(1)\\007click-me\\033]8;;\\007",
    "\\033[8;10;20t\\033[3;0;0t\\033[21t\\033[20t",
    "\\033[38;2;1;2;3;48;2;200;10;10mcoloured\\033[0m",
    "\\033[?1$p\\033[?2004$p\\033P\\044qm\\033\\\\\\007",
    "<img src=x onerror=alert(1)><script>alert(1)</script>",
    "https://example.com@evil.example/ https://example.com/fine",
  ];
  await types(page, `printf '${hostile.join("\\n")}\\nend-%s\\n' $((40+2))`);
  await shows(page, "end-42");
  assert.equal(await page.title(), title);
  assert.deepEqual(page.viewportSize(), size);
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "mine");
  assert.equal(await page.locator(".xterm-rows img, .xterm-rows script, .xterm-rows a").count(), 0);
  const coloured = page.locator(".xterm-rows span").filter({ hasText: "coloured" }).last();
  assert.equal(
    await coloured.evaluate((span) => getComputedStyle(span).backgroundColor),
    "rgb(200, 10, 10)",
    "colours are set although no style attribute is permitted",
  );

  // Links of the web are asked about, and the others are none.
  const opened = /** @type {string[]} */ ([]);
  window.context.on("page", (other) => opened.push(other.url()));
  await click(page, "click-me");
  await click(page, "example.com@evil");
  assert.equal(await page.getByRole("dialog").count(), 0);
  await click(page, "example.com/fine");
  const dialog = page.getByRole("dialog", { name: "Open example.com?" });
  await dialog.waitFor(SOON);
  assert.deepEqual(await violations(page), []);
  await picture(page, "console-link");
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.deepEqual(opened, []);
  // As any terminal does, this one has answered what it was asked; the shell has it as typed.
  await page.locator(".xterm-helper-textarea").focus();
  await page.keyboard.press("Control+c");
  await types(page, "clear");
});

inWindow("several lines are pasted when somebody has seen them", async (window) => {
  await window.context.grantPermissions(["clipboard-read", "clipboard-write"], {
    origin: serving.origin,
  });
  const page = await signedIn(window, CONSOLE);
  await is(page, "Connected");
  const paste = async (/** @type {string} */ text) => {
    await page.evaluate((copied) => navigator.clipboard.writeText(copied), text);
    await page.locator(".xterm-helper-textarea").focus();
    await page.keyboard.press("Control+Shift+V");
  };
  await paste("echo one-$((40+2))");
  await shows(page, "echo one-");
  assert.equal(await page.getByRole("dialog").count(), 0);
  await page.keyboard.press("Enter");
  await shows(page, "one-42");

  await paste("echo two-$((40+2))\necho three-$((40+2))\n");
  const dialog = page.getByRole("dialog", { name: "Paste into the console" });
  await dialog.getByText("2 lines, each ended by Enter").waitFor(SOON);
  assert.deepEqual(await violations(page), []);
  await picture(page, "console-paste");
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await answers(page, "four");
  assert.doesNotMatch(await page.locator(".xterm-rows").innerText(), /(two|three)-42/);
  await paste("echo two-$((40+2))\necho three-$((40+2))\n");
  await dialog.getByRole("button", { name: "Paste 2 lines" }).click();
  await shows(page, "three-42");
  await shows(page, "two-42");

  await page.getByRole("button", { name: "Find" }).click();
  await page.getByLabel("Find in the output").fill("nothing-has-this");
  await page.keyboard.press("Enter");
  await page.getByText("It is not in the output").waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+]");
  assert.ok(await page.evaluate(() => document.activeElement?.closest(".guest-bar") !== null));
});

inWindow(
  "a phone has the keys that it lacks",
  async (window) => {
    const page = await signedIn(window, CONSOLE);
    await is(page, "Connected");
    await types(page, "sleep 1000");
    await page.getByRole("button", { name: "Ctrl", exact: true }).click();
    await page.keyboard.type("c");
    await answers(page, "interrupted");
    await page.keyboard.type("echo arrow-$((40+))");
    for (let presses = 0; presses < 2; presses += 1)
      await page.getByRole("button", { name: "Left", exact: true }).click();
    await page.keyboard.type("2");
    await page.keyboard.press("Enter");
    await shows(page, "arrow-42");
  },
  { width: 390, height: 844 },
);

inWindow("the screen of a guest is seen, and typed at", async (window) => {
  const page = await signedIn(window, "/vms/guest/screen");
  await is(page, "Connected");
  const drawn = () => {
    const canvas = document.querySelector("canvas");
    const data = canvas?.getContext("2d")?.getImageData(0, 0, canvas.width, canvas.height).data;
    return (data ?? []).some((value, index) => index % 4 !== 3 && value > 60);
  };
  await page.waitForFunction(drawn, undefined, SOON);
  const fits = await page.evaluate(() => {
    const canvas = document.querySelector("canvas")?.getBoundingClientRect();
    const place = document.querySelector(".screen-place")?.getBoundingClientRect();
    return (
      canvas !== undefined &&
      place !== undefined &&
      canvas.bottom <= place.bottom + 1 &&
      canvas.right <= place.right + 1
    );
  });
  assert.ok(fits, "the picture fits the window");
  assert.deepEqual(await violations(page), []);
  await page.getByRole("button", { name: "Clipboard" }).click();
  await page.getByLabel("Text for guest").fill("copied");
  assert.deepEqual(await violations(page), []);
  await picture(page, "screen-clipboard");
  await page.getByRole("button", { name: "Put it into" }).click();
  const asked = /** @type {(string | null)[]} */ ([]);
  page.on("request", (request) => {
    if (request.url().includes("/tickets")) asked.push(request.postData());
  });
  await page.getByRole("button", { name: "Look only" }).click();
  await is(page, "Looking only");
  assert.ok(await page.getByRole("button", { name: "Ctrl Alt Del", exact: true }).isDisabled());
  await page.getByText("strongroom vm screen guest --read-only", { exact: true }).waitFor();
  // The host is asked for it: it would pass on nothing even of another page.
  assert.deepEqual(
    asked.map((body) => JSON.parse(body ?? "{}").read_only),
    [true],
  );
  const hasPicture = () => (document.querySelector("canvas")?.width ?? 0) > 100;
  await page.waitForFunction(hasPicture, undefined, SOON);
  assert.deepEqual(await violations(page), []);
  await picture(page, "screen-look");
  await page.reload();
  await is(page, "Looking only");
  await page.getByRole("button", { name: "Type and click" }).click();
  await is(page, "Connected");
  await page.locator("canvas").first().click();
  await page.keyboard.press("Control+]");
  assert.ok(await page.evaluate(() => document.activeElement?.closest(".guest-bar") !== null));
  const { items } = await serving.asks("GET", "/v1/events?limit=100");
  assert.ok(items.some((/** @type {any} */ { kind }) => kind === "vm.screen_opened"));
});

inWindow("a VM without a screen says so", async (window) => {
  const page = await signedIn(window, "/vms/blind/screen");
  await page.getByText("blind has no screen").waitFor(SOON);
  assert.deepEqual(await violations(page), []);
  await picture(page, "screen-none");
});

inWindow("a policy that refuses browsers is said, and no ticket is asked for", async (window) => {
  const page = await signedIn(window, "/vms/closed/console");
  let tickets = 0;
  page.on("request", (request) => (tickets += request.url().includes("tickets") ? 1 : 0));
  await page.getByText("The policy of closed refuses it to browsers").waitFor(SOON);
  await page.getByText("strongroom vm console closed", { exact: true }).waitFor();
  assert.deepEqual(await violations(page), []);
  await picture(page, "console-denied");
  assert.equal(tickets, 0);
});

inWindow("who may not is told by what it is refused", async (window) => {
  const made = await serving.asks("POST", "/v1/tokens", {
    name: "auditor1",
    role: "auditor",
    scope: { type: "site" },
    expires_unix_seconds: Math.floor(Date.now() / 1000) + 3600,
  });
  const page = await signedIn(window, CONSOLE, made.token);
  const alert = page.getByRole("alert");
  await alert.getByText("forbidden").waitFor(SOON);
  assert.match((await alert.textContent()) ?? "", /request [0-9a-f]{16}/);
  await picture(page, "console-refused");
  await page.getByRole("link", { name: "guest", exact: true }).first().click();
  assert.ok(await page.getByRole("button", { name: "Console" }).isDisabled());
  window.faults = window.faults.filter((fault) => !/403/.test(fault));
});

for (const theme of /** @type {const} */ (["light", "dark"])) {
  for (const width of [390, 1280, 1920]) {
    inWindow(
      `consoles and screens are accessible and fit: ${theme}, ${width} px`,
      async (window) => {
        const page = await signedIn(window, CONSOLE);
        await is(page, "Connected");
        await types(
          page,
          `clear; for i in 1 2 3 4 5 6 7; do printf '\\033[3%dmcolour-%d \\033[1mbright\\033[0m ' $i $i; done; echo; ls -l /`,
        );
        await shows(page, /colour-7[^]*tmp/);
        const found = [];
        for (const name of ["console", "screen"]) {
          if (name === "screen") {
            await page.goto(`${serving.origin}/vms/guest/screen`);
            await is(page, "Connected");
            await page.waitForFunction(() => (document.querySelector("canvas")?.width ?? 0) > 100);
          }
          for (const violation of await violations(page)) found.push(`${name}: ${violation}`);
          const beyond = await page.evaluate(
            () => document.documentElement.scrollWidth - innerWidth,
          );
          if (beyond > 0) found.push(`${name} is ${beyond} px wider than the window`);
          await picture(page, `${name}-${theme}-${width}`);
        }
        assert.deepEqual(found, []);
      },
      { theme, width, height: width < 500 ? 844 : width > 1500 ? 1080 : 800 },
    );
  }
}

inWindow("a console ends with the session, and goes on with the next one", async (window) => {
  const page = await signedIn(window, CONSOLE);
  await is(page, "Connected");
  await serving.asks("DELETE", "/v1/page-sessions");
  const dialog = page.getByRole("alertdialog", { name: "Your session has ended" });
  await dialog.waitFor(SOON);
  await page.locator(".guest-bar").getByText("Not connected", { exact: true }).waitFor(SOON);
  await signIn(dialog, serving.token);
  await is(page, "Connected");
  await answers(page, "renewed");
  window.faults = window.faults.filter((fault) => !fault.includes("401"));
});

inWindow("a guest that ends, ends its console, and what it said stays", async (window) => {
  const page = await signedIn(window, CONSOLE);
  await is(page, "Connected");
  await answers(page, "last");
  await serving.does("POST", "/v1/vms/guest/stop", { force: true });
  await is(page, "VM is off");
  await shows(page, "last-42");
  forgetLost(window);
  window.faults = window.faults.filter((fault) => !/tickets/.test(fault));
});
