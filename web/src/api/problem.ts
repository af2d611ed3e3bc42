import type { Schemas } from "./types";

/** A request that was refused or failed, as the API says it. */
export class Problem extends Error {
  override readonly name = "Problem";

  constructor(
    readonly code: Schemas["ErrorCode"] | "unreachable",
    message: string,
    readonly nextStep?: string,
    readonly request?: string,
  ) {
    super(message);
  }

  get isOver(): boolean {
    return this.code === "unauthorized";
  }
}

interface ErrorAnswer {
  error: {
    code: Schemas["ErrorCode"];
    message: string;
    next_step?: string | null;
    request?: string;
  };
}

function isErrorAnswer(value: unknown): value is ErrorAnswer {
  return typeof value === "object" && value !== null && "error" in value;
}

/** The problem that an answer states. */
export async function problemOf(answer: Response): Promise<Problem> {
  const request = answer.headers.get("Strongroom-Request") ?? undefined;
  const body: unknown = await answer.json().catch(() => undefined);
  if (!isErrorAnswer(body)) {
    return new Problem(
      "internal",
      `the server answered with status ${answer.status}`,
      undefined,
      request,
    );
  }
  const { code, message, next_step, request: named } = body.error;
  return new Problem(code, message, next_step ?? undefined, named ?? request);
}

/** Any failure as a problem that can be shown. */
export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (error instanceof TypeError) {
    return new Problem(
      "unreachable",
      "the control plane does not answer",
      "Check that `strongroom serve` runs and that this machine reaches it. The page goes on by itself.",
    );
  }
  return new Problem("internal", error instanceof Error ? error.message : String(error));
}
