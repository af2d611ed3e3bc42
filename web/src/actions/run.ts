import { useQueryClient } from "@tanstack/react-query";
import { useCallback } from "react";
import { asProblem, type Problem } from "../api/problem";
import { addresses } from "../app/addresses";
import { say } from "../ui/toasts";
import { askAgain } from "./changed";
import { commandLine, taskOf, type Action } from "./action";

export interface Outcome {
  action: Action;
  answer?: unknown;
  problem?: Problem;
}

/** As many requests are under way at once. */
const AT_ONCE = 4;

/** Sends all, some at a time, in their order. */
export async function sendAll(
  actions: readonly Action[],
  keyOf: (action: Action) => string,
): Promise<readonly Outcome[]> {
  const outcomes: Outcome[] = [];
  const waiting = actions.map((action, index) => ({ action, index }));
  const worker = async () => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      const { action, index } = next;
      try {
        outcomes[index] = { action, answer: await action.send(keyOf(action)) };
      } catch (error) {
        outcomes[index] = { action, problem: asProblem(error) };
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  return outcomes;
}

/** Says what was accepted. */
export function report({ action, answer, problem }: Outcome): void {
  const task = taskOf(answer);
  say({
    tone: problem === undefined ? "good" : "bad",
    text: problem === undefined ? action.label : `${action.label}: refused`,
    ...(problem === undefined ? { command: commandLine(action) } : { problem }),
    ...(task === undefined
      ? {}
      : { link: { to: addresses.task(task.id), label: "Follow its task" } }),
  });
}

/** Does something at once, and says so. */
export function useRun(): (actions: readonly Action[]) => Promise<readonly Outcome[]> {
  const cache = useQueryClient();
  return useCallback(
    async (actions) => {
      const outcomes = await sendAll(actions, () => crypto.randomUUID());
      const failed = outcomes.filter(({ problem }) => problem !== undefined);
      if (outcomes.length <= 3) outcomes.forEach(report);
      else if (failed[0] === undefined)
        say({ tone: "good", text: `${outcomes.length} requests accepted` });
      else
        say({
          tone: "bad",
          text: `${failed.length} of ${outcomes.length} were refused`,
          ...(failed[0].problem === undefined ? {} : { problem: failed[0].problem }),
        });
      askAgain(
        cache,
        actions.map(({ operation }) => operation),
      );
      return outcomes;
    },
    [cache],
  );
}
