import { whenSignedIn } from "../session/expiry";
import { OPERATIONS } from "./generated/operations";
import { problemOf } from "./problem";
import type { AnswerOf, OperationId, PlainRequest, RequestOf } from "./types";

/** The method and address of a request. */
export function addressOf(
  operation: OperationId,
  request: PlainRequest,
): { method: string; address: string } {
  const { method, path } = OPERATIONS[operation];
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) =>
    encodeURIComponent(String(request.path?.[name] ?? "")),
  );
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(request.query ?? {})) {
    if (value !== undefined && value !== null) query.set(name, String(value));
  }
  const text = query.toString();
  return { method, address: text === "" ? filled : `${filled}?${text}` };
}

export interface Sending {
  signal?: AbortSignal;
  /** A repeated request with the same key is done once. */
  key?: string;
  /** What a person would call it, if it changes something. */
  what?: string;
  /** A refusal is final: it is itself about who the caller is. */
  isSignIn?: boolean;
}

export function send(
  method: string,
  address: string,
  body: unknown,
  sending: Sending,
): Promise<Response> {
  const headers = new Headers({ Accept: "application/json", "Strongroom-Page": "1" });
  if (body !== undefined) headers.set("Content-Type", "application/json");
  if (sending.key !== undefined) headers.set("Idempotency-Key", sending.key);
  return fetch(address, {
    method,
    headers,
    cache: "no-store",
    credentials: "same-origin",
    redirect: "error",
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    ...(sending.signal === undefined ? {} : { signal: sending.signal }),
  });
}

/** Sends a request. If the session is over, it waits until somebody has signed in again. */
export async function call<Id extends OperationId>(
  operation: Id,
  request: RequestOf<Id>,
  sending: Sending = {},
): Promise<AnswerOf<Id>> {
  const plain = request as PlainRequest;
  const { method, address } = addressOf(operation, plain);
  for (;;) {
    const answer = await send(method, address, plain.body, sending);
    if (answer.ok) return (await answer.json()) as AnswerOf<Id>;
    const problem = await problemOf(answer);
    if (!problem.isOver || sending.isSignIn === true) throw problem;
    if (!(await whenSignedIn(sending.what))) throw problem;
  }
}
