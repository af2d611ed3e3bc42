import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import ts from "typescript";
import { describe, expect, it } from "vitest";
import { OPERATIONS } from "./generated/operations";

/** Operations that no screen has, with the reason. */
const WITHOUT_A_SCREEN: Readonly<Record<string, string>> = {
  emergency_sign_in: "it answers with a token; page_sign_in sets a cookie",
  event_stream: "live/stream.ts reads it as a stream, by its address",
  healthz: "for machines that watch the server",
  metrics: "for Prometheus",
  openapi: "the page's types are made of it",
  provider_sign_in: "it answers with a token; page_sign_in sets a cookie",
  provider_sign_in_begin: "page_sign_in_begin does it for browsers",
  readyz: "for machines that watch the server",
  recipient_show: "recipient_list answers with the same of each",
  sign_in: "it answers with a token; page_sign_in sets a cookie",
  vm_snapshot_list: "vm_show answers with the snapshots",
  volume_limits: "for programs that read maps",
  volume_read: "maps of what has changed are for programs that back volumes up",
};

const SOURCES = new URL("../", import.meta.url).pathname;

function filesIn(folder: string): readonly string[] {
  return readdirSync(folder).flatMap((name) => {
    const path = join(folder, name);
    if (statSync(path).isDirectory()) return name === "generated" ? [] : filesIn(path);
    return /\.tsx?$/.test(name) && !name.endsWith(".test.ts") ? [path] : [];
  });
}

/** The functions that take an operation, and which of their arguments it is. */
const ASKING: Readonly<Record<string, number>> = { useAsk: 0, call: 0, action: 1 };

/** The operations that a source asks for. */
function askedFor(path: string): readonly string[] {
  const file = ts.createSourceFile(path, readFileSync(path, "utf8"), ts.ScriptTarget.Latest, true);
  const found: string[] = [];
  const visit = (node: ts.Node): void => {
    if (ts.isCallExpression(node) && ts.isIdentifier(node.expression)) {
      const argument = node.arguments[ASKING[node.expression.text] ?? -1];
      const texts = argument === undefined ? [] : textsOf(argument);
      found.push(...texts);
    }
    ts.forEachChild(node, visit);
  };
  visit(file);
  return found;
}

/** A text, or both of a choice between two. */
function textsOf(node: ts.Expression): readonly string[] {
  if (ts.isStringLiteralLike(node)) return [node.text];
  return ts.isConditionalExpression(node)
    ? [...textsOf(node.whenTrue), ...textsOf(node.whenFalse)]
    : [];
}

describe("the operations of the API", () => {
  const used = new Set(filesIn(SOURCES).flatMap(askedFor));
  const all = Object.keys(OPERATIONS);

  it("each have a screen, or a reason why not", () => {
    expect(all.filter((id) => !used.has(id) && !(id in WITHOUT_A_SCREEN))).toEqual([]);
  });

  it("without a screen have none, and exist", () => {
    const excused = Object.keys(WITHOUT_A_SCREEN);
    expect(excused.filter((id) => used.has(id) || !all.includes(id))).toEqual([]);
  });
});
