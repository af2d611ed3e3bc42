// A guest's console in the page: what it shows, and what is typed at it.

export const SOON = { timeout: Number(process.env["SOON"] ?? 60_000) };

/** @typedef {import("playwright-core").Page} Page */

/** Waits until the terminal shows a text. @param {Page} page @param {string | RegExp} text */
export async function shows(page, text) {
  const source =
    typeof text === "string" ? text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&") : text.source;
  await page
    .waitForFunction(
      (wanted) =>
        new RegExp(wanted).test(
          [...document.querySelectorAll(".xterm-rows > div")]
            .map((row) => row.textContent?.replaceAll("\u00a0", " ").trimEnd())
            .join("\n"),
        ),
      source,
      SOON,
    )
    .catch(async (error) => {
      throw new Error(
        `${error}\nnot ${text} in:\n${await page.locator(".xterm-rows").innerText()}`,
      );
    });
}

/** @param {Page} page @param {"Connected" | "Looking only" | "Connection lost" | "VM is off"} state */
export async function is(page, state) {
  await page.locator(".guest-bar").getByText(state, { exact: true }).waitFor(SOON);
}

/** Types a line at the console. @param {Page} page @param {string} line */
export async function types(page, line) {
  await page.locator(".xterm-helper-textarea").focus();
  await page.keyboard.type(line);
  await page.keyboard.press("Enter");
}

/**
 * Runs a line of which the guest makes a text that is not in it.
 * @param {Page} page
 * @param {string} word
 */
export async function answers(page, word) {
  await types(page, `echo ${word}-$((40+2))`);
  await shows(page, `${word}-42`);
}

/**
 * The last number that the terminal shows after a word.
 * @param {Page} page
 * @param {string} word
 */
export async function lastNumber(page, word) {
  const rows = (await page.locator(".xterm-rows").innerText()).replaceAll("\u00a0", " ");
  return Number([...rows.matchAll(new RegExp(`${word}-(\\d+)`, "g"))].at(-1)?.[1] ?? 0);
}

/**
 * Waits until the guest has counted beyond a number.
 * @param {Page} page
 * @param {string} word
 * @param {number} beyond
 */
export async function countsBeyond(page, word, beyond) {
  await page
    .waitForFunction(
      ({ before, least }) => {
        const rows = document.querySelector(".xterm-rows")?.textContent ?? "";
        return [...rows.matchAll(new RegExp(`${before}-(\\d+)`, "g"))].some(
          ([, number]) => Number(number) > least,
        );
      },
      { before: word, least: beyond },
      SOON,
    )
    .catch(async (error) => {
      throw new Error(
        `${error}\nno ${word} beyond ${beyond} in:\n${await page.locator(".xterm-rows").innerText()}`,
      );
    });
}
