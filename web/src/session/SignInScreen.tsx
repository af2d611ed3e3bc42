import { useEffect, useState, type ReactNode } from "react";
import { asProblem, Problem } from "../api/problem";
import { ThemeSwitch } from "../shell/ThemeSwitch";
import { Brand } from "../shell/Brand";
import { ButtonLink } from "../ui/Button";
import { ProblemNote, Waiting } from "../ui/Notes";
import type { Returned } from "./returned";
import { goToProvider, signIn, type PageSession } from "./sign-in";
import { SignInForm } from "./SignInForm";

function Door({ children }: { children: ReactNode }) {
  return (
    <div className="door">
      <main className="door-card">
        <header className="door-head">
          <Brand />
          <ThemeSwitch />
        </header>
        {children}
      </main>
      <footer className="soft small">Virtual machines whose disks nobody but they can read.</footer>
    </div>
  );
}

export function SignInScreen({ onSignedIn }: { onSignedIn: (session: PageSession) => void }) {
  useEffect(() => {
    document.title = "Sign in \u00b7 Strongroom";
  }, []);
  return (
    <Door>
      <h1>Sign in</h1>
      <SignInForm onSignedIn={onSignedIn} />
    </Door>
  );
}

interface Through {
  provider: string;
  /** The provider's answer; without it, its page is still to be visited. */
  returned: Returned | undefined;
  onSignedIn: (session: PageSession) => void;
}

async function finish(
  provider: string,
  returned: Returned | undefined,
  onSignedIn: (session: PageSession) => void,
): Promise<void> {
  if (returned === undefined) return goToProvider(provider);
  // Whoever cancels there is not sent there again.
  if ("refusal" in returned) {
    throw new Problem(
      "unauthorized",
      `${provider} has signed nobody in: ${returned.refusal}`,
      "sign in again, or ask those who run it",
    );
  }
  onSignedIn(await signIn({ by: "provider", ...returned }));
}

/** On the way to an identity provider, or back from it. */
export function ThroughProvider({ provider, returned, onSignedIn }: Through) {
  const [problem, setProblem] = useState<Problem>();
  useEffect(() => {
    finish(provider, returned, onSignedIn).catch((error: unknown) => setProblem(asProblem(error)));
  }, [provider, returned, onSignedIn]);
  return (
    <Door>
      <h1>Sign in with {provider}</h1>
      {problem === undefined ? (
        <Waiting label={`Asking ${provider}`} />
      ) : (
        <>
          <ProblemNote problem={problem} />
          <ButtonLink to="/">Sign in again</ButtonLink>
        </>
      )}
    </Door>
  );
}
