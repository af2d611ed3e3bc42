import { addressOf, call } from "../api/call";
import type { AnswerOf, OperationId, PlainRequest, RequestOf, Task } from "../api/types";

/** Something that a person can do: one request, and the command that does the same. */
export interface Action {
  /** What it does and to what: Stop web1. */
  readonly label: string;
  readonly operation: OperationId;
  readonly request: PlainRequest;
  /** The words of the command line after `strongroom`. */
  readonly command: readonly string[];
  readonly send: (key: string) => Promise<unknown>;
  /** The fields of its body that are never shown. */
  readonly secrets?: readonly string[];
}

export function action<Id extends OperationId>(
  label: string,
  operation: Id,
  request: RequestOf<Id>,
  command: readonly (string | false | undefined)[],
  secrets: readonly string[] = [],
): Action {
  return {
    ...(secrets.length === 0 ? {} : { secrets }),
    label,
    operation,
    request: request as PlainRequest,
    command: command.filter((word): word is string => typeof word === "string"),
    send: (key): Promise<AnswerOf<Id>> => call(operation, request, { key, what: label }),
  };
}

/** The task that an answer is, if it is one. */
export function taskOf(answer: unknown): Task | undefined {
  const isTask =
    typeof answer === "object" && answer !== null && "kind" in answer && "state" in answer;
  return isTask ? (answer as Task) : undefined;
}

const PLAIN_WORD = /^[A-Za-z0-9@%+=:,./_-]+$/;

/** A word as a POSIX shell takes it. */
export function quoted(word: string): string {
  return PLAIN_WORD.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export function commandLine({ command }: Pick<Action, "command">): string {
  return ["strongroom", ...command].map(quoted).join(" ");
}

/** A body as JSON in which the secret fields have dots for their values. */
function withoutSecrets(body: unknown, secrets: readonly string[]): string {
  const hidden = (field: string, value: unknown) =>
    secrets.includes(field) && typeof value === "string" ? "..." : value;
  return JSON.stringify(body, hidden);
}

/** The request as curl sends it; the token comes from a file. */
export function curlLine(
  { operation, request, secrets = [] }: Pick<Action, "operation" | "request" | "secrets">,
  origin: string,
): string {
  const { method, address } = addressOf(operation, request);
  const words = ["curl", "--cacert", "api.crt", "-H", '"Authorization: Bearer $(cat token)"'];
  if (method !== "GET") words.push("-X", method);
  if (request.body !== undefined) {
    words.push(
      "-H",
      quoted("Content-Type: application/json"),
      "-d",
      quoted(withoutSecrets(request.body, secrets)),
    );
  }
  return [...words, quoted(`${origin}${address}`)].join(" ");
}
