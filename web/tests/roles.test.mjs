// What somebody with each built-in role sees in the page, beside the matrix of docs/ROLES.md.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { launch, picture, violations, Window } from "./browser.mjs";
import { makeEstate, SCREENS } from "./screens.mjs";
import { Serving } from "./serving.mjs";
import { codeOf } from "./totp.mjs";

const SOON = { timeout: 30_000 };
const PASSWORD = "a long password";
const MATRIX = readFileSync(new URL("../../docs/ROLES.md", import.meta.url), "utf8");

/** Buttons of a VM that runs, and entries of its list, by the operation that they are. */
const BUTTONS = { "Stop\u2026": "vm_stop", "Snapshot\u2026": "vm_snapshot_create" };
const ENTRIES = {
  "Restart\u2026": "vm_restart",
  Pause: "vm_pause",
  Suspend: "vm_suspend",
  Reset: "vm_reset",
  "Move to another host\u2026": "vm_move_host",
  "Clone\u2026": "vm_clone",
  "Change\u2026": "vm_set",
  "Tag\u2026": "vm_set",
  "Limit its disks\u2026": "vm_limit",
  "Rotate its key\u2026": "vm_rotate_key",
  "Delete\u2026": "vm_delete",
};

/**
 * What the matrix says of an operation for each role, and which privileges it takes.
 * @param {string} operation
 */
function rightOf(operation) {
  const line = MATRIX.split("\n").find((each) => each.startsWith(`| \`${operation}\` |`));
  assert.ok(line !== undefined, `ROLES.md has no ${operation}`);
  const [, , takes = "", ifEncrypted = "", ...may] = line.split("|").map((cell) => cell.trim());
  const head = MATRIX.split("\n").find((each) => each.startsWith("| operation |")) ?? "";
  const roles = head.split("|").map((cell) => cell.trim());
  return {
    takes: [...`${takes} ${ifEncrypted}`.matchAll(/`([a-z_]+)`/g)].map(([, name]) => name),
    may: (/** @type {string} */ role) => may[roles.indexOf(role) - 4],
  };
}

/** @type {Serving} */
let serving;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  serving = await Serving.start();
  browser = await launch();
  await makeEstate(serving);
  await serving.does("POST", "/v1/vms/plain/start");
});

after(async () => {
  await browser?.close();
  await serving?.remove();
});

/**
 * A tab of a new user with a role.
 * @param {Window} window
 * @param {string} name
 * @param {string} role
 */
async function signedIn(window, name, role) {
  const made = await serving.asks("POST", "/v1/users", { name, password: PASSWORD });
  await serving.asks("POST", "/v1/grants", { user: name, role, scope: { type: "site" } });
  const page = await window.tab();
  await page.getByLabel("User").fill(name);
  await page.getByLabel("Password", { exact: true }).last().fill(PASSWORD);
  await page.getByLabel("Code").fill(codeOf(made.totp_secret));
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Overview" }).waitFor(SOON);
  return page;
}

/** What is disabled on a screen, forms aside, and does not say why. */
function silent() {
  const disabled = document.querySelectorAll("main button:disabled, main [aria-disabled=true]");
  return [...disabled]
    .filter((element) => element.closest("form") === null)
    .filter((element) => {
      const said = document.getElementById(element.getAttribute("aria-describedby") ?? "");
      return (said?.textContent ?? "") === "";
    })
    .map((element) => element.textContent?.trim() ?? "");
}

/** What an action says of itself, and of why it is not to be had. @param {import("playwright-core").Locator} place */
const saidBy = (place) =>
  place.evaluate((element) => {
    const described = document.getElementById(element.getAttribute("aria-describedby") ?? "");
    return `${element.textContent} ${described?.textContent}`;
  });

for (const role of ["administrator", "no-cryptography-administrator", "operator", "auditor"]) {
  test(`what a role of the matrix shows: ${role}`, async () => {
    const window = await Window.open(browser, serving);
    try {
      const page = await signedIn(window, role.replaceAll("-", ""), role);
      /** @type {string[]} */
      const refused = [];
      page.on("response", (answer) => {
        if (answer.status() === 403)
          refused.push(`${page.url()}: ${answer.request().method()} ${answer.url()}`);
      });
      // Nothing is asked for that is refused, and what is disabled says why.
      const found = [];
      for (const [name, address] of Object.entries(SCREENS)) {
        await page.goto(`${serving.origin}${address}`);
        await page.getByRole("heading", { level: 1 }).waitFor(SOON);
        await page.waitForFunction(() => document.querySelector(".waiting") === null);
        for (const words of await page.evaluate(silent))
          found.push(`${address}: ${words} is disabled and does not say why`);
        // The others are those of an administrator, or between the two.
        if (role === "auditor")
          for (const violation of await violations(page)) found.push(`${address}: ${violation}`);
        await picture(page, `role-${role}-${name}`);
      }
      assert.deepEqual([...refused, ...found], []);

      // A VM's actions are those of the matrix.
      for (const [vm, isSealed] of /** @type {const} */ ([
        ["alpha", true],
        ["plain", false],
      ])) {
        await page.goto(`${serving.origin}/vms/${vm}`);
        await page.getByRole("button", { name: "Stop\u2026" }).waitFor(SOON);
        await page.getByRole("button", { name: `More for ${vm}`, exact: true }).click();
        const list = page.getByRole("menu");
        const actions = [
          ...Object.entries(BUTTONS).map(([label, operation]) => ({
            operation,
            place: page.locator("main").getByRole("button", {
              name: label,
              exact: true,
              includeHidden: true,
            }),
          })),
          ...Object.entries(ENTRIES).map(([label, operation]) => ({
            operation,
            place: list.getByRole("menuitem").filter({ hasText: label }),
          })),
        ];
        for (const { operation, place } of actions) {
          if (operation === "vm_rotate_key" && !isSealed) continue;
          const { may, takes } = rightOf(operation);
          const word = may(role);
          const isAllowed = word === "yes" || (word === "in plain text" && !isSealed);
          const isEnabled = await place.isEnabled();
          assert.equal(isEnabled, isAllowed, `${operation} of ${vm} for ${role}: ${word}`);
          if (isEnabled) continue;
          const said = await saidBy(place);
          const lack = /Your roles lack ([a-z_, ]+)\./.exec(said)?.[1]?.split(", ") ?? [];
          assert.ok(
            lack.length > 0,
            `${operation} of ${vm} does not say what ${role} lacks: ${said}`,
          );
          for (const privilege of lack)
            assert.ok(takes.includes(privilege), `${operation}: ${lack}`);
        }
      }
      assert.deepEqual(window.faults, []);
    } finally {
      await window.close();
    }
  });
}
