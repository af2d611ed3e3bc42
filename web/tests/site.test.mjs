// The screens of the site in Chromium, against a real `strongroom serve`: what people do on them.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, picture, violations, Window } from "./browser.mjs";
import { Serving } from "./serving.mjs";

/** @type {Serving} */
let serving;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  serving = await Serving.start();
  browser = await launch();
  const small = { memory_bytes: 64 * 1024 ** 2, disks: [{ size_bytes: 8 * 1024 ** 2 }], nics: [] };
  await serving.does("POST", "/v1/vms", { ...small, name: "alpha" });
});

after(async () => {
  await browser?.close();
  await serving?.remove();
});

/** A person at one of the screens, and what is nearest: the open dialog. */
class Person {
  /** @param {import("playwright-core").Page} page */
  constructor(page) {
    this.page = page;
    this.dialog = page.getByRole("dialog").or(page.getByRole("alertdialog"));
  }

  /** @param {string} address */
  async goes(address) {
    await this.page.goto(`${serving.origin}${address}`);
    await this.page.getByRole("heading", { level: 1 }).waitFor();
  }

  /** @param {RegExp | string} name */
  presses(name) {
    return this.page.getByRole("button", { name }).first().click();
  }

  /** @param {string} of @param {RegExp} action */
  async chooses(of, action) {
    await this.presses(`Actions for ${of}`);
    await this.page.getByRole("menuitem", { name: action }).click();
  }

  /** @param {RegExp | string} label @param {string} text */
  fills(label, text) {
    return this.dialog.getByLabel(label).first().fill(text);
  }

  /** @param {string} label @param {string} option */
  picks(label, option) {
    return this.dialog.getByLabel(label, { exact: true }).selectOption(option);
  }

  /** @param {string} button */
  submits(button) {
    return this.dialog.getByRole("button", { name: button, exact: true }).click();
  }

  /** Submits, and waits until the dialog has closed. @param {string} button */
  async finishes(button) {
    await this.submits(button);
    await this.dialog.waitFor({ state: "detached" });
  }

  /** Types the name that a destructive action asks for. @param {string} name @param {string} button */
  async confirms(name, button) {
    const submit = this.dialog.getByRole("button", { name: button, exact: true });
    assert.ok(await submit.isDisabled(), `${button} takes no name`);
    await this.fills(/^Type/, name);
    await submit.click();
    await this.dialog.waitFor({ state: "detached" });
  }

  /** Keeps a secret that is shown once; the dialog does not close before that. */
  async keeps() {
    const shown = this.page.getByRole("alertdialog");
    await shown.waitFor();
    await this.page.keyboard.press("Escape");
    await shown.waitFor();
    const secret = (await shown.locator(".secret code").textContent()) ?? "";
    await this.dialog.getByLabel("I have kept it").check();
    await this.finishes("Done");
    return secret;
  }

  /** @param {string | RegExp} text */
  sees(text) {
    return this.page.getByText(text).first().waitFor();
  }
}

/** @param {string} name @param {(person: Person) => Promise<void>} body */
function person(name, body) {
  test(name, async () => {
    const window = await Window.open(browser, serving);
    try {
      const page = await window.signedIn();
      await page.getByRole("heading", { name: "Overview" }).waitFor();
      page.setDefaultTimeout(20_000);
      await body(new Person(page));
      assert.deepEqual(window.faults, []);
    } finally {
      await window.close();
    }
  });
}

person("a folder gets a quota, and goes when its name is typed", async (ada) => {
  await ada.goes("/access/folders");
  await ada.presses(/Create a folder/);
  await ada.fills("Name", "tenant1");
  await ada.finishes("Create");
  await ada.chooses("tenant1", /Set its quota/);
  await ada.fills("VMs, and disks of none", "5");
  await ada.fills(/^Memory/, "2");
  await ada.finishes("Set");
  await ada.sees("0 of 5");
  await ada.sees("0 B of 2 GiB");
  await ada.chooses("tenant1", /Delete/);
  await ada.confirms("tenant1", "Delete");
  assert.deepEqual((await serving.asks("GET", "/v1/folders")).items, []);
});

person("a token is shown once, works, is rotated and revoked", async (ada) => {
  await ada.goes("/access/tokens");
  await ada.presses(/Create a token/);
  await ada.fills("Name", "backup");
  await ada.picks("Role", "operator");
  await ada.submits("Create");
  const first = await ada.keeps();
  assert.equal((await serving.asks("GET", "/v1/me", undefined, first)).name, "backup");
  await ada.chooses("backup", /Rotate/);
  await ada.submits("Rotate");
  const second = await ada.keeps();
  await assert.rejects(serving.asks("GET", "/v1/me", undefined, first));
  await ada.chooses("backup", /Revoke/);
  await ada.confirms("backup", "Revoke");
  await assert.rejects(serving.asks("GET", "/v1/me", undefined, second));
});

person("a user gets a second factor and a role, and why it may do something", async (ada) => {
  await ada.goes("/access");
  await ada.presses(/Create a user/);
  await ada.fills("Name", "bo");
  await ada.fills("Password", "correct horse battery");
  await ada.dialog.getByText("What this does").click();
  assert.ok(!(await ada.dialog.innerText()).includes("correct horse"), "the password is shown");
  await ada.submits("Create");
  await ada.sees("otpauth://totp/Strongroom:bo");
  await ada.keeps();
  await ada.page.getByRole("link", { name: "bo" }).click();
  await ada.presses(/Give a role/);
  await ada.picks("Role", "operator");
  await ada.finishes("Give");
  await ada.page.getByRole("cell", { name: "the whole site", exact: true }).waitFor();
  await ada.goes("/access/explain?user=bo&operation=vm_start&vm=alpha");
  await ada.sees("bo may vm_start on alpha");
  await ada.goes("/access/explain?user=bo&operation=vm_delete&vm=alpha");
  await ada.sees("bo may not vm_delete on alpha");
  await ada.goes("/access/users/bo");
  await ada.presses(/^Take away/);
  await ada.finishes("Take away");
  await ada.sees("It has no role");
  await ada.chooses("bo", /Delete/);
  await ada.confirms("bo", "Delete");
  assert.deepEqual((await serving.asks("GET", "/v1/users")).items, []);
});

person("an emergency credential is made and revoked", async (ada) => {
  await ada.goes("/access/emergency");
  await ada.presses(/Create a credential/);
  await ada.fills("Name", "envelope1");
  await ada.submits("Create");
  await ada.page.getByRole("alertdialog").waitFor();
  // What was said about the button that was pressed has no name when that is gone.
  await ada.page.waitForFunction(() => document.querySelector("[role=img]") === null);
  assert.deepEqual(await violations(ada.page), []);
  assert.match(await ada.keeps(), /^[A-Za-z0-9]{4}-/);
  await ada.chooses("envelope1", /Revoke/);
  await ada.confirms("envelope1", "Revoke");
  await ada.sees("There is no way in for an emergency");
});

person("a policy is held to the limits and says its rules", async (ada) => {
  await ada.goes("/policies");
  await ada.presses(/Create a policy/);
  await ada.fills("Name", "gold");
  await ada.presses("Add snapshots");
  await ada.finishes("Create");
  await ada.page.getByRole("link", { name: "gold" }).click();
  await ada.sees("One every 1 d, 7 kept.");
  await ada.chooses("gold", /Change its rules/);
  await ada.fills(/Most operations/, "9");
  await ada.sees("At least 16.");
  assert.ok(await ada.dialog.getByRole("button", { name: "Change the rules" }).isDisabled());
  await ada.fills(/Most operations/, "900");
  await ada.finishes("Change the rules");
  await ada.sees("At most 900 operations a second.");
});

person("keys of a filter get a period", async (ada) => {
  await ada.goes("/keys/vms");
  await ada.page.getByLabel("Name").fill("alph");
  await ada.page.waitForURL(/q=alph/);
  await ada.presses(/Set the period of 1/);
  await ada.fills("Every, in days", "0");
  await ada.sees("At least 1 d.");
  await ada.fills("Every, in days", "45");
  await ada.finishes("Set");
  await ada.sees("every 45 d");
});

person("a datastore is added, compared with the inventory, and removed", async (ada) => {
  mkdirSync(join(serving.place, "more"));
  await ada.goes("/datastores");
  await ada.presses(/Add a datastore/);
  await ada.fills("Name", "more");
  await ada.fills("Path", join(serving.place, "more"));
  await ada.finishes("Add");
  await ada.page.getByRole("link", { name: "more" }).click();
  await ada.page.getByRole("link", { name: "Contents" }).click();
  await ada.sees("It is empty");
  await ada.chooses("more", /Remove/);
  await ada.confirms("more", "Remove");
  await ada.page.waitForURL(/datastores$/);
});

person("networks and placement groups come and go", async (ada) => {
  await ada.goes("/networks");
  await ada.presses(/Create a network/);
  await ada.fills("Name", "lan");
  await ada.fills("VLAN", "4999");
  await ada.sees("At most 4094.");
  await ada.fills("VLAN", "99");
  await ada.finishes("Create");
  await ada.page.getByRole("link", { name: "lan" }).click();
  await ada.chooses("lan", /Delete/);
  await ada.confirms("lan", "Delete");
  await ada.goes("/placement-groups");
  await ada.presses(/Create a group/);
  await ada.fills("Name", "db");
  await ada.finishes("Create");
  await ada.page.getByRole("link", { name: "db" }).click();
  await ada.presses(/Add VMs/);
  await ada.fills(/^VMs/, "nobody");
  await ada.sees("No VM is called nobody.");
  await ada.fills(/^VMs/, "alpha");
  await ada.finishes("Add");
  await ada.page.getByRole("link", { name: "alpha" }).waitFor();
  await ada.chooses("db", /Delete/);
  await ada.confirms("db", "Delete");
});

person("a host is in maintenance until that ends", async (ada) => {
  const [host] = (await serving.asks("GET", "/v1/hosts")).items;
  await ada.goes(`/hosts/${encodeURIComponent(host.name)}`);
  await ada.chooses(host.name, /Set in maintenance/);
  await ada.sees(`${host.name} is in maintenance`);
  await ada.chooses(host.name, /Declare lost/);
  assert.ok(await ada.dialog.getByRole("button", { name: "Declare lost" }).isDisabled());
  await ada.finishes("Cancel");
  await ada.chooses(host.name, /Evacuate/);
  await ada.page.getByLabel("Take volumes along where no other host reaches them").check();
  await picture(ada.page, "evacuate");
  const command = ada.dialog.getByText(`strongroom host evacuate ${host.name} --with-volumes`);
  await command.waitFor({ state: "attached" });
  await ada.finishes("Cancel");
  await ada.chooses(host.name, /End maintenance/);
  await ada.page.getByText(`${host.name} is in maintenance`).waitFor({ state: "detached" });
});

person("the access log is filtered by its address, and verified with a kept head", async (ada) => {
  const head = await serving.asks("GET", "/v1/access/log/head");
  await ada.goes("/audit?by=admin&kind=changed");
  await ada.sees(/shown of/);
  await ada.page.getByRole("link", { name: "Verification and retention" }).click();
  const heads = ada.page.getByLabel(/Heads that were kept/);
  await heads.fill(JSON.stringify(head));
  await ada.presses("Verify");
  await ada.sees(/The log is whole/);
  await ada.sees("1 kept heads agree");
  await heads.fill(JSON.stringify({ ...head, hash: "0".repeat(64) }));
  await ada.presses("Verify");
  await ada.sees("The log was tampered with");
});

person("the choices of a browser are kept, and no more than they", async (ada) => {
  await ada.goes("/settings");
  await ada.page.getByLabel("Compact").check();
  await ada.page.getByLabel("Times are shown in").selectOption("Asia/Tokyo");
  await ada.page.reload();
  await ada.page.getByRole("heading", { name: "Settings" }).waitFor();
  assert.ok(await ada.page.getByLabel("Compact").isChecked());
  const kept = await ada.page.evaluate(() => ({ ...localStorage }));
  assert.deepEqual(kept, {
    "strongroom-density": "compact",
    "strongroom-time-zone": "Asia/Tokyo",
  });
});
