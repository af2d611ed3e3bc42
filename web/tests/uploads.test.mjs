// Images that a page sends: a VM that begins with one, and connections that are lost on the way.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash, randomFillSync } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, picture, violations, Window } from "./browser.mjs";
import { Serving } from "./serving.mjs";

const SOON = { timeout: Number(process.env["SOON"] ?? 120_000) };
const MIB = 1024 ** 2;
const LARGE_BYTES = 192 * MIB;
/** Occurs nowhere but in what is sent. */
const MARKER = "strongroom-marker-that-a-page-has-sent";

/** @type {Serving} */
let serving;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  serving = await Serving.start();
  browser = await launch();
  await serving.does("POST", "/v1/vms", {
    name: "store",
    memory_bytes: 64 * MIB,
    disks: [{ size_bytes: LARGE_BYTES }],
    nics: [],
  });
  large("large.raw");
});

after(async () => {
  await browser?.close();
  await serving?.remove();
});

/** @param {string} name */
const file = (name) => join(serving.place, name);

/** An image of noise, whose rate of compression and share of zeroes help nobody. @param {string} name */
function large(name) {
  const bytes = randomFillSync(Buffer.alloc(LARGE_BYTES));
  bytes.write(MARKER, 0);
  bytes.write(MARKER, LARGE_BYTES - MARKER.length);
  writeFileSync(file(name), bytes);
}

/** A disk that boots and says `ready`, and then what is typed. */
function bootable() {
  // prettier-ignore
  const code = [
    0x31, 0xc0, 0x8e, 0xd8, 0xba, 0xf8, 0x03, 0xbe, 0x2f, 0x7c, 0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8,
    0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xfb, 0xba, 0xf8, 0x03, 0xec, 0x3c, 0x71, 0x74, 0x03, 0xee, 0xeb,
    0xed, 0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, 0xf4, 0xeb, 0xfd,
  ];
  const disk = Buffer.alloc(8 * MIB);
  Buffer.from([...code, ...Buffer.from("ready\r\n\0")]).copy(disk);
  disk.writeUInt16LE(0xaa55, 510);
  disk.write(MARKER, 4 * MIB);
  writeFileSync(file("boot.raw"), disk);
  execFileSync("qemu-img", [
    ...["convert", "-f", "raw", "-O", "qcow2"],
    ...[file("boot.raw"), file("boot.qcow2")],
  ]);
}

/**
 * @param {string} name
 * @param {(window: Window) => Promise<void>} body
 */
function inWindow(name, body) {
  test(name, async () => {
    const window = await Window.open(browser, serving);
    try {
      await body(window);
      // What is lost on purpose is said by the browser, too.
      const faults = window.faults.filter((fault) => !/WebSocket connection to|ERR_/.test(fault));
      assert.deepEqual(faults, []);
    } finally {
      await window.close();
    }
  });
}

/** @param {string} vm @param {string} disk */
async function digestOf(vm, disk) {
  const copy = file(`${vm}.copy`);
  await serving.runs(
    `rm -f ${copy} && strongroom vm export ${vm} ${copy} --disk ${disk} --format raw`,
  );
  return createHash("sha256").update(readFileSync(copy)).digest("hex");
}

/** @param {string} name */
const digest = (name) =>
  createHash("sha256")
    .update(readFileSync(file(name)))
    .digest("hex");

/** Opens the dialog that fills a disk. @param {import("playwright-core").Page} page */
async function fills(page) {
  // What a test before this one has left is not this one's.
  const { task } = await serving.asks("GET", "/v1/vms/store");
  if (typeof task === "string") {
    await serving.asks("DELETE", `/v1/tasks/${task}`);
    await serving.asks("GET", `/v1/tasks/${task}?wait_s=30`);
  }
  await page.getByRole("heading", { level: 1, name: "About" }).waitFor(SOON);
  await page.goto(`${serving.origin}/vms/store/disks`);
  await page.getByRole("button", { name: "More for disk0" }).click();
  await page.getByRole("menuitem", { name: "Fill with an image" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Image", { exact: true }).setInputFiles(file("large.raw"));
  await dialog.getByText(`192 MiB, for a disk of 192 MiB`).waitFor(SOON);
  await dialog.getByLabel("Type disk0 to confirm").fill("disk0");
  await dialog.getByRole("button", { name: "Fill", exact: true }).click();
  await page.getByText(/This page sends large\.raw: \d/).waitFor(SOON);
}

/** The task that fills the disk is done. */
async function isFilled() {
  const { items } = await serving.asks("GET", "/v1/tasks?limit=50");
  const task = items.find((/** @type {any} */ each) => each.kind === "vm_import_disk");
  for (;;) {
    const now = await serving.asks("GET", `/v1/tasks/${task.id}?wait_s=10`);
    if (now.state === "running") continue;
    assert.equal(now.state, "done", JSON.stringify(now));
    return;
  }
}

/** The parent of a process; nothing if it has gone. @param {number} pid */
function parentOf(pid) {
  try {
    return Number(/^PPid:\s*(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);
  } catch {
    return undefined;
  }
}

/** Whether a process is the server's. @param {number | undefined} pid */
function isOurs(pid) {
  while (pid !== undefined && pid > 1) {
    if (pid === serving.pid) return true;
    pid = parentOf(pid);
  }
  return false;
}

/** The processes that carry browsers' connections to hosts. */
function relays() {
  const all = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  return all.map(Number).filter((pid) => {
    try {
      const words = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
      return words.includes("guest-relay") && isOurs(pid);
    } catch {
      return false;
    }
  });
}

inWindow("a VM begins with an image that the page has sent, and with a seed", async (window) => {
  bootable();
  const page = await window.signedIn("/vms/new");
  await page.getByLabel("Name", { exact: true }).fill("sent");
  await page.getByLabel("Image for disk 0").setInputFiles(file("boot.qcow2"));
  await page.getByLabel("Its format").waitFor(SOON);
  assert.equal(await page.getByLabel("Its format").inputValue(), "qcow2");
  const size = page.getByRole("group", { name: "Disk 0" }).or(page.getByLabel("Disk 0"));
  await size.first().fill("1");
  await page.getByLabel("User data").fill("#cloud-config\nhostname: sent\n");
  await picture(page, "create-with-image");
  assert.deepEqual(await violations(page), []);
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await page.getByRole("heading", { level: 1, name: "sent" }).waitFor(SOON);
  for (;;) {
    const vm = await serving.asks("GET", "/v1/vms/sent");
    if (vm.lifecycle === "present" && typeof vm.task !== "string") break;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  const vm = await serving.asks("GET", "/v1/vms/sent");
  assert.equal(vm.seed, true);
  await page.getByRole("button", { name: "Start", exact: true }).first().click();
  await page.goto(`${serving.origin}/vms/sent/console`);
  await page.locator(".xterm-rows").getByText("ready").waitFor(SOON);
  await page.locator(".xterm-helper-textarea").focus();
  await page.keyboard.type("forty-two");
  await page.locator(".xterm-rows").getByText("forty-two").waitFor(SOON);
  await serving.does("POST", "/v1/vms/sent/stop", { force: true });
});

inWindow("a picture of a larger disk is refused before anything is sent", async (window) => {
  const page = await window.signedIn("/vms/new");
  await page.getByLabel("Name", { exact: true }).fill("small");
  execFileSync("qemu-img", ["create", "-q", "-f", "qcow2", file("huge.qcow2"), "100G"]);
  await page.getByLabel("Image for disk 0").setInputFiles(file("huge.qcow2"));
  await page.getByText("Its disk has 100 GiB: make disk 0 as large.").waitFor(SOON);
  // A raw name over another format's mark: a person has to say what it is.
  writeFileSync(file("ubuntu.img"), readFileSync(file("huge.qcow2")));
  await page.getByLabel("Image for disk 0").setInputFiles(file("ubuntu.img"));
  await page.getByText("say which one it has").waitFor(SOON);
});

inWindow("an upload goes on after its relay was killed", async (window) => {
  const page = await window.signedIn("/about");
  await fills(page);
  await picture(page, "sending");
  const found = await violations(page);
  const [relay] = relays();
  assert.ok(relay !== undefined, "no relay");
  process.kill(relay, "SIGKILL");
  await isFilled();
  assert.equal(await digestOf("store", "disk0"), digest("large.raw"));
  assert.deepEqual(found, []);
});

inWindow("an upload goes on after the server was restarted", async (window) => {
  large("large.raw");
  const page = await window.signedIn("/about");
  await fills(page);
  await serving.end();
  await serving.begin();
  await isFilled();
  assert.equal(await digestOf("store", "disk0"), digest("large.raw"));
});

inWindow("another tab goes on with the same file, and with no other one", async (window) => {
  large("large.raw");
  large("other.raw");
  const first = await window.signedIn("/about");
  await fills(first);
  await first.close({ runBeforeUnload: false });
  const page = await window.tab("/vms/store");
  const choose = page.getByRole("button", { name: "Choose the image for disk0" });
  await choose.waitFor(SOON).catch(() => picture(page, "not-awaited"));
  await picture(page, "awaited-image");
  const found = await violations(page);
  for (const [name, isIt] of /** @type {const} */ ([
    ["other.raw", false],
    ["large.raw", true],
  ])) {
    await choose.click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Image", { exact: true }).setInputFiles(file(name));
    await dialog.getByLabel("Its format").waitFor(SOON);
    await dialog.getByRole("button", { name: "Send", exact: true }).click();
    if (isIt) await dialog.waitFor({ state: "detached", ...SOON });
    else {
      await page.getByText("it is not the image of which a part is here already").waitFor(SOON);
      const close = dialog.getByRole("button", { name: "Cancel" });
      if ((await close.count()) > 0) await close.click();
    }
  }
  await isFilled();
  assert.equal(await digestOf("store", "disk0"), digest("large.raw"));
  assert.deepEqual(found, []);
});

inWindow("nothing that was sent lies anywhere in the clear", async () => {
  const found = execFileSync(
    "bash",
    [
      "-c",
      `grep -rlaF "${MARKER}" "$1"/home "$1"/run "$1"/vms 2>/dev/null || true`,
      "grep",
      serving.place,
    ],
    { encoding: "utf8" },
  );
  assert.equal(found, "");
});
