// An identity provider that is not ours (`oidc-provider`, scripts/oidc-provider): alice is in the
// groups `ops` and `staff` there, bob in `guests`.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Program } from "./program.mjs";

const SCRIPT = fileURLToPath(new URL("../../scripts/oidc-provider", import.meta.url));

export class IdentityProvider {
  /** @param {Program} program @param {string} issuer */
  constructor(program, issuer) {
    this.program = program;
    this.issuer = issuer;
  }

  /**
   * Starts it, and has a site sign in its people by the page.
   * @param {import("./serving.mjs").Serving} serving
   * @param {string} name
   */
  static async of(serving, name) {
    const directory = execFileSync(SCRIPT, { encoding: "utf8" }).trim();
    const [certificate, key] = ["crt", "key"].map((end) => join(serving.place, `${name}.${end}`));
    // prettier-ignore
    execFileSync("openssl", [
      "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
      "-subj", "/CN=identity-provider", "-extensions", "v3_req", "-addext", "subjectAltName=IP:127.0.0.1",
      "-keyout", String(key), "-out", String(certificate),
    ], { stdio: "pipe" });
    const page = `${serving.origin}/sign-in/${name}`;
    const program = await Program.start(
      [
        ...[join(directory, "node"), join(directory, "provider.mjs")],
        ...[name, String(certificate), String(key), page],
      ],
      { ready: '"issuer":' },
    );
    const issuer = /"issuer":"([^"]+)"/.exec(program.said)?.[1] ?? "";
    try {
      await serving.asks("POST", "/v1/identity-providers", {
        name,
        issuer,
        client_id: "strongroom-page",
        scopes: ["openid", "profile", "groups"],
        authorities: readFileSync(String(certificate), "utf8"),
        pages: [page],
      });
    } catch (error) {
      await program.end();
      throw error;
    }
    return new IdentityProvider(program, issuer);
  }

  /**
   * Fills in its forms, which lead back to the page.
   * @param {import("playwright-core").Page} page
   * @param {string} user
   */
  async signsIn(page, user) {
    await page.getByPlaceholder("Enter any login").fill(user);
    await page.getByPlaceholder("and password").fill("any");
    await page.getByRole("button", { name: "Sign-in" }).click();
    await page.getByRole("button", { name: "Continue" }).click();
  }

  /** @param {import("playwright-core").Page} page */
  async isCancelled(page) {
    await page.getByRole("link", { name: /Cancel/ }).click();
  }

  async end() {
    await this.program.end();
  }
}
