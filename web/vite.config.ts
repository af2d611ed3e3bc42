import { existsSync, readFileSync } from "node:fs";
import react from "@vitejs/plugin-react";
import { type ProxyOptions } from "vite";
import { defineConfig } from "vitest/config";

/** A running `strongroom serve` for the development server, and the token that stands for a session. */
function api(): Record<string, ProxyOptions> {
  const target = process.env["STRONGROOM_API"] ?? "https://127.0.0.1:5690";
  const file = process.env["STRONGROOM_TOKEN_FILE"];
  const headers =
    file && existsSync(file)
      ? { Authorization: `Bearer ${readFileSync(file, "utf8").trim()}` }
      : {};
  return { "/v1": { target, secure: false, headers } };
}

export default defineConfig({
  plugins: [react()],
  build: {
    target: "es2022",
    sourcemap: false,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: api(), strictPort: true },
  test: { include: ["src/**/*.test.{ts,tsx}"] },
});
