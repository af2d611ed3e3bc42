// Debian's Chromium, and what no page of it may do.
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const CHROMIUM = "/usr/bin/chromium";
// prettier-ignore
const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const DIST = fileURLToPath(new URL("../dist", import.meta.url));
const TYPES = {
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
  ".txt": "text/plain",
};

// A page that a test puts in the place of another counts as one from far away.
const DIST_FLAGS = [
  "--disable-features=LocalNetworkAccessChecks,LocalNetworkAccessChecksWebSockets",
];
export const IS_DIST = process.env["STRONGROOM_PAGE"] === "dist";

export function launch() {
  return chromium.launch({
    executablePath: CHROMIUM,
    args: IS_DIST ? [...FLAGS, ...DIST_FLAGS] : FLAGS,
  });
}

/** A window on the page, which notes everything that must not happen. */
export class Window {
  /** @type {string[]} */
  faults = [];
  /** Origins whose own pages are not judged. @type {string[]} */
  elsewhere = [];

  /**
   * @param {import("playwright-core").BrowserContext} context
   * @param {import("./api.mjs").Api} serving
   */
  constructor(context, serving) {
    this.context = context;
    this.serving = serving;
  }

  /**
   * @param {import("playwright-core").Browser} browser
   * @param {import("./api.mjs").Api} serving
   * @param {{ width?: number, height?: number, theme?: "light" | "dark" }} [look]
   */
  static async open(browser, serving, { width = 1280, height = 800, theme = "light" } = {}) {
    const context = await browser.newContext({
      ignoreHTTPSErrors: true,
      viewport: { width, height },
      colorScheme: theme,
    });
    const window = new Window(context, serving);
    if (IS_DIST) await window.#showDist();
    return window;
  }

  /** Another tab of this window. */
  async tab(address = "/") {
    const page = await this.context.newPage();
    const isElsewhere = () => this.elsewhere.includes(new URL(page.url()).origin);
    page.on("console", (message) => {
      if (isElsewhere()) return;
      const { url } = message.location();
      // The program's own page, in the place of which web/dist is shown, has other assets.
      const isOther = IS_DIST && url.includes("/assets/") && message.text().includes("404");
      if (["error", "warning"].includes(message.type()) && !isOther)
        this.faults.push(`${message.type()}: ${message.text()} (${url})`);
    });
    page.on("pageerror", (error) => this.faults.push(`error: ${error.message}`));
    page.on("request", (request) => {
      const { origin, protocol } = new URL(request.url());
      if (isElsewhere() || this.elsewhere.includes(origin)) return;
      if (origin !== this.serving.origin && !["data:", "blob:"].includes(protocol))
        this.faults.push(`foreign request: ${request.url()}`);
    });
    page.on("dialog", (dialog) => {
      this.faults.push(`a script has run: ${dialog.message()}`);
      void dialog.dismiss();
    });
    if (IS_DIST) this.#replaceRedirected(page);
    await page.goto(`${this.serving.origin}${address}`);
    return page;
  }

  /** A tab in which somebody is signed in by a token. */
  async signedIn(address = "/", token = this.serving.token) {
    const page = await this.tab(address);
    await signIn(page, token);
    return page;
  }

  async close() {
    await this.context.close();
  }

  /** What a redirection leads to is not routed. @param {import("playwright-core").Page} page */
  #replaceRedirected(page) {
    page.on("response", (answer) => {
      const request = answer.request();
      const { origin, pathname } = new URL(request.url());
      const isPage = origin === this.serving.origin && !pathname.startsWith("/v1");
      if (isPage && request.isNavigationRequest() && request.redirectedFrom() !== null)
        void page.goto(request.url()).catch(() => undefined);
    });
  }

  /** Shows web/dist in place of the page that the program was built with, under its headers. */
  async #showDist() {
    await this.context.route(`${this.serving.origin}/assets/**`, async (route) => {
      const file = join(DIST, new URL(route.request().url()).pathname);
      const type =
        TYPES[/** @type {keyof typeof TYPES} */ (extname(file))] ?? "application/octet-stream";
      await (existsSync(file)
        ? route.fulfill({ path: file, contentType: type })
        : route.fulfill({ status: 404 }));
    });
    await this.context.route(
      (url) => url.origin === this.serving.origin && !/^\/(v1|assets|openapi)/.test(url.pathname),
      async (route) => {
        const answer = await route.fetch();
        const nonce =
          /'nonce-([^']+)'/.exec(answer.headers()["content-security-policy"] ?? "")?.[1] ?? "";
        const body = readFileSync(join(DIST, "index.html"), "utf8").replaceAll(
          "@STYLE_NONCE@",
          nonce,
        );
        await route.fulfill({ response: answer, body });
      },
    );
  }
}

/**
 * @param {import("playwright-core").Page | import("playwright-core").Locator} place
 * @param {string} token
 */
export async function signIn(place, token) {
  await place.getByRole("button", { name: "Sign in" }).waitFor();
  const choice = place.getByLabel("Token", { exact: true });
  if ((await choice.count()) > 0) await choice.check();
  await place.getByLabel("Access token").fill(token);
  await place.getByRole("button", { name: "Sign in" }).click();
}

/**
 * What axe says against a page, in words.
 * @param {import("playwright-core").Page} page
 * @returns {Promise<string[]>}
 */
export async function violations(page) {
  // The page's policy permits no script but its own; axe comes in from outside of it.
  const session = await page.context().newCDPSession(page);
  await session.send("Runtime.evaluate", { expression: AXE });
  const { result } = await session.send("Runtime.evaluate", {
    expression:
      "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => JSON.stringify(violations))",
    awaitPromise: true,
    returnByValue: true,
  });
  await session.detach();
  return JSON.parse(result.value).map(
    (/** @type {any} */ each) =>
      `${each.id}: ${each.help}; ${each.nodes
        .map((/** @type {any} */ node) => node.html)
        .join(" | ")
        .slice(0, 600)}`,
  );
}

/**
 * Keeps a picture where somebody wants them.
 * @param {import("playwright-core").Page} page
 * @param {string} name
 */
export async function picture(page, name) {
  const folder = process.env["STRONGROOM_PICTURES"];
  if (folder === undefined) return;
  mkdirSync(folder, { recursive: true });
  await page.screenshot({ path: join(folder, `${name}.png`) });
}
