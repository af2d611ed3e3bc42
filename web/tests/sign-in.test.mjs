// Ways in that are not this site's own: an identity provider, and an emergency.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { IS_DIST, launch, picture, signIn, violations, Window } from "./browser.mjs";
import { IdentityProvider } from "./identity-provider.mjs";
import { Serving } from "./serving.mjs";

const SOON = { timeout: 30_000 };

/** @type {Serving} */
let serving;
/** @type {IdentityProvider} */
let corp;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  serving = await Serving.start();
  corp = await IdentityProvider.of(serving, "corp");
  browser = await launch();
  await serving.asks("POST", "/v1/grants", {
    group: { provider: "corp", group: "ops" },
    role: "operator",
    scope: { type: "site" },
  });
});

after(async () => {
  await browser?.close();
  await corp?.end();
  await serving?.remove();
});

/** @param {string} name @param {(window: Window) => Promise<void>} body */
function inWindow(name, body) {
  test(name, async () => {
    const window = await Window.open(browser, serving);
    // What the provider's own pages do is not ours to judge.
    window.elsewhere.push(corp.issuer);
    try {
      await body(window);
      assert.deepEqual(window.faults, []);
    } finally {
      await window.close();
    }
  });
}

/** @param {import("playwright-core").Page} page */
const me = (page) =>
  page.evaluate(async () => {
    const answer = await fetch("/v1/me");
    return [answer.status, (await answer.json()).name];
  });

inWindow(
  "somebody of an identity provider signs in, with the roles of its groups",
  async (window) => {
    const page = await window.tab("/vms");
    await page.getByRole("button", { name: "Continue with corp" }).click();
    await page.waitForURL(`${corp.issuer}/**`);
    await corp.signsIn(page, "alice");
    await page.getByRole("heading", { name: "Overview" }).waitFor(SOON);
    assert.deepEqual(await me(page), [200, "corp:alice"]);
    // Neither the code nor the state stays where others find it.
    const left = await page.evaluate(() =>
      JSON.stringify([
        location.href,
        document.referrer,
        { ...localStorage },
        { ...sessionStorage },
      ]),
    );
    assert.doesNotMatch(left, /code=|state=/);
    // Where web/dist is shown in place of the program's page, the way back leads over that.
    if (!IS_DIST) {
      await page.goBack();
      assert.doesNotMatch(page.url(), /code=|state=/);
    }
    await page.goto(`${serving.origin}/access/folders`);
    await page.getByRole("button", { name: /Create a folder/ }).waitFor(SOON);
    assert.ok(await page.getByRole("button", { name: /Create a folder/ }).isDisabled());
    // Cookies are of a host, whatever its port: those of the provider are there, too.
    const cookies = await window.context.cookies(serving.origin);
    const own = cookies.filter(({ name }) => name.startsWith("__Host-"));
    assert.deepEqual(
      own.map(({ name, httpOnly, sameSite }) => [name, httpOnly, sameSite]),
      [["__Host-strongroom", true, "Strict"]],
    );
  },
);

inWindow("who has no role does not come in, and is told no more", async (window) => {
  const page = await window.tab();
  await page.getByRole("button", { name: "Continue with corp" }).click();
  await corp.signsIn(page, "bob");
  await page.getByRole("alert").getByText("gives no session").waitFor(SOON);
  assert.deepEqual(await violations(page), []);
  await picture(page, "sign-in-refused");
  assert.equal((await me(page))[0], 401);
  window.faults = window.faults.filter((fault) => !/401|403/.test(fault));
});

inWindow("who cancels at the provider stays here, and can sign in otherwise", async (window) => {
  const page = await window.tab();
  await page.getByRole("button", { name: "Continue with corp" }).click();
  await page.waitForURL(`${corp.issuer}/**`);
  await corp.isCancelled(page);
  await page.getByText("corp has signed nobody in: access denied").waitFor(SOON);
  assert.equal(page.url(), `${serving.origin}/sign-in/corp`);
  assert.deepEqual(await violations(page), []);
  await picture(page, "sign-in-cancelled");
  await page.getByRole("link", { name: "Sign in again" }).click();
  await signIn(page, serving.token);
  await page.getByRole("heading", { name: "Overview" }).waitFor(SOON);
});

inWindow("what somebody else has begun is not finished in another browser", async (window) => {
  const other = await Window.open(browser, serving);
  other.elsewhere.push(corp.issuer);
  try {
    const theirs = await other.tab();
    await theirs.getByRole("button", { name: "Continue with corp" }).click();
    await theirs.waitForURL(`${corp.issuer}/**`);
    /** @type {string | undefined} */
    let back;
    theirs.on("request", (request) => {
      if (request.url().startsWith(`${serving.origin}/sign-in/corp?`)) back ??= request.url();
    });
    // The attacker does not use the answer, and sends it to somebody else.
    await theirs.route(`${serving.origin}/v1/**`, (route) => route.abort());
    await corp.signsIn(theirs, "alice").catch(() => undefined);
    await theirs.waitForTimeout(0);
    for (let looks = 0; back === undefined && looks < 600; looks += 1)
      await theirs.waitForTimeout(50);
    assert.match(String(back), /code=/);
    const page = await window.tab(String(back).replace(serving.origin, ""));
    await page.getByRole("alert").waitFor(SOON);
    assert.equal((await me(page))[0], 401);
  } finally {
    await other.close();
  }
  window.faults = window.faults.filter((fault) => !/401|403/.test(fault));
});

inWindow("an emergency credential lets in once, and everybody sees it", async (window) => {
  const { secret } = await serving.asks("POST", "/v1/emergency-credentials", { name: "envelope1" });
  const page = await window.tab();
  const comes = async (/** @type {import("playwright-core").Page} */ tab) => {
    await tab.getByLabel("Emergency", { exact: true }).check();
    await tab.getByLabel("Credential").fill(secret.toLowerCase());
    await tab.getByLabel("Reason").fill("corp is away, INC-4711");
    await tab.getByRole("button", { name: "Sign in" }).click();
  };
  await page.getByLabel("Emergency", { exact: true }).check();
  await page.getByText("works once").waitFor(SOON);
  assert.deepEqual(await violations(page), []);
  await picture(page, "sign-in-emergency");
  await comes(page);
  await page.getByRole("heading", { name: "Overview" }).waitFor(SOON);
  assert.deepEqual(await me(page), [200, "emergency:envelope1"]);
  await page.getByText("emergency credential envelope1 was used").first().waitFor(SOON);
  // It does not acknowledge its own use.
  await page.goto(`${serving.origin}/access/emergency`);
  await page.getByText("corp is away, INC-4711").first().waitFor(SOON);
  assert.deepEqual(await violations(page), []);

  const again = await Window.open(browser, serving);
  try {
    const tab = await again.tab();
    await comes(tab);
    await tab.getByRole("alert").getByText("used already").waitFor(SOON);
    assert.equal((await me(tab))[0], 401);
  } finally {
    await again.close();
  }
});
