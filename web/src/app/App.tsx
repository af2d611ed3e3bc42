import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { Suspense } from "react";
import { Route, Switch } from "wouter";
import type { Returned } from "../session/returned";
import { SessionGate } from "../session/SessionGate";
import { Shell } from "../shell/Shell";
import { Nowhere } from "../shell/Nowhere";
import { ScreenBoundary } from "../shell/ScreenBoundary";
import { Waiting } from "../ui/Notes";
import { SCREENS } from "./screens";

const cache = new QueryClient({
  defaultOptions: {
    queries: {
      // Events say when something has changed.
      staleTime: Infinity,
      retry: false,
      refetchOnWindowFocus: false,
    },
  },
});

export function App({ returned }: { returned: Returned | undefined }) {
  return (
    <QueryClientProvider client={cache}>
      <SessionGate returned={returned}>
        {(begun) => (
          <Shell begun={begun}>
            <ScreenBoundary>
              <Suspense fallback={<Waiting lines={6} />}>
                <Switch>
                  {SCREENS.map(({ path, component }) => (
                    <Route key={path} path={path} component={component} />
                  ))}
                  <Route component={Nowhere} />
                </Switch>
              </Suspense>
            </ScreenBoundary>
          </Shell>
        )}
      </SessionGate>
    </QueryClientProvider>
  );
}
