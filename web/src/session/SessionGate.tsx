import { useQueryClient } from "@tanstack/react-query";
import { useCallback, useEffect, useState, type ReactNode } from "react";
import { useLocation } from "wouter";
import { call } from "../api/call";
import { asProblem, type Problem } from "../api/problem";
import type { Schemas } from "../api/types";
import { forgetVms } from "../live/estate";
import { ProblemNote, Waiting } from "../ui/Notes";
import { signedIn } from "./expiry";
import type { Returned } from "./returned";
import { waysIn } from "./sign-in";
import { SignInScreen, ThroughProvider } from "./SignInScreen";
import { tellTabs } from "./tabs";
import { MeContext } from "./useMe";

export interface Begun {
  me: Schemas["Me"];
  /** The event from which on the page has to hear of changes. */
  after: number | undefined;
}

type State =
  | { kind: "asking" }
  | { kind: "stranger" }
  | { kind: "failed"; problem: Problem }
  | { kind: "in"; begun: Begun };

/** Begins for somebody who is signed in; a stranger is told without a refusal. */
async function begin(): Promise<Begun | undefined> {
  const { signed_in } = await waysIn();
  if (signed_in !== true) return undefined;
  const me = await call("me_show", {});
  const events = await call("event_list", { query: { limit: 1 } });
  return { me, after: events.items.at(-1)?.id };
}

/** Shows the page to somebody who is signed in, and a way in to everybody else. */
export function SessionGate({
  returned,
  children,
}: {
  returned: Returned | undefined;
  children: (begun: Begun) => ReactNode;
}) {
  const cache = useQueryClient();
  const [state, setState] = useState<State>({ kind: "asking" });
  const [address, go] = useLocation();

  const enter = useCallback(
    () =>
      begin()
        .then((begun) => {
          if (begun === undefined) {
            setState({ kind: "stranger" });
            return;
          }
          signedIn(false);
          setState({ kind: "in", begun });
        })
        .catch((error: unknown) => {
          const problem = asProblem(error);
          setState(problem.isOver ? { kind: "stranger" } : { kind: "failed", problem });
        }),
    [],
  );
  const entered = useCallback(
    ({ name }: { name: string }) => {
      cache.clear();
      forgetVms();
      tellTabs({ kind: "signed_in", name });
      if (location.pathname.startsWith("/sign-in/")) go("/", { replace: true });
      void enter();
    },
    [cache, enter, go],
  );

  const provider = /^\/sign-in\/([^/]+)$/.exec(address)?.[1];
  useEffect(() => {
    if (provider === undefined) void enter();
  }, [enter, provider]);

  if (provider !== undefined) {
    return (
      <ThroughProvider
        provider={decodeURIComponent(provider)}
        returned={returned}
        onSignedIn={entered}
      />
    );
  }
  switch (state.kind) {
    case "asking":
      return <Waiting />;
    case "stranger":
      return <SignInScreen onSignedIn={entered} />;
    case "failed":
      return (
        <main className="door">
          <ProblemNote problem={state.problem} retry={() => void enter()} />
        </main>
      );
    case "in":
      return <MeContext value={state.begun.me}>{children(state.begun)}</MeContext>;
  }
}
