import { useQuery } from "@tanstack/react-query";
import { useState, type SyntheticEvent } from "react";
import { asProblem, type Problem } from "../api/problem";
import { Button } from "../ui/Button";
import { RadioField, TextField } from "../ui/Field";
import { Note, ProblemNote, Waiting } from "../ui/Notes";
import { goToProvider, signIn, waysIn, type PageSession, type SignIn } from "./sign-in";

type By = "password" | "token" | "emergency";

interface Props {
  onSignedIn: (session: PageSession) => void;
  /** Whether to go to a provider in another tab, so that this one keeps what is in its forms. */
  keepsPage?: boolean;
  submit?: string;
}

/** Every way in that the server has. */
export function SignInForm({ onSignedIn, keepsPage = false, submit = "Sign in" }: Props) {
  const ways = useQuery({ queryKey: ["sign_in_ways"], queryFn: waysIn, retry: 1 });
  const [chosen, choose] = useState<By>();
  const hasPasswords = ways.data?.passwords ?? false;
  const by = chosen ?? (hasPasswords ? "password" : "token");
  if (ways.isPending) return <Waiting label="Asking how to sign in" />;
  const options = [
    ...(hasPasswords ? [{ value: "password", label: "Password" }] : []),
    { value: "token", label: "Token" },
    ...(ways.data?.emergency === true ? [{ value: "emergency", label: "Emergency" }] : []),
  ];
  return (
    <div className="sign-in-form">
      <Providers names={ways.data?.providers.map(({ name }) => name) ?? []} keepsPage={keepsPage} />
      {options.length < 2 ? null : (
        <RadioField
          label="Sign in with"
          value={by}
          options={options}
          onChange={(value) => choose(value as By)}
        />
      )}
      <Credentials key={by} by={by} submit={submit} onSignedIn={onSignedIn} />
    </div>
  );
}

function Providers({ names, keepsPage }: { names: readonly string[]; keepsPage: boolean }) {
  const [problem, setProblem] = useState<Problem>();
  if (names.length === 0) return null;
  const go = (name: string) => {
    goToProvider(name).catch((error: unknown) => setProblem(asProblem(error)));
  };
  return (
    <div className="providers">
      {problem === undefined ? null : <ProblemNote problem={problem} />}
      {names.map((name) =>
        keepsPage ? (
          <a
            key={name}
            className="button button-plain"
            href={`/sign-in/${encodeURIComponent(name)}?begin`}
            target="_blank"
            rel="noreferrer"
          >
            Continue with {name}
          </a>
        ) : (
          <Button key={name} onPress={() => go(name)}>
            Continue with {name}
          </Button>
        ),
      )}
    </div>
  );
}

function Credentials({
  by,
  submit,
  onSignedIn,
}: {
  by: By;
  submit: string;
  onSignedIn: (session: PageSession) => void;
}) {
  const [problem, setProblem] = useState<Problem>();
  const [isBusy, setBusy] = useState(false);
  const [user, setUser] = useState("");
  const [secret, setSecret] = useState("");
  const [code, setCode] = useState("");
  const [reason, setReason] = useState("");

  const way = (): SignIn => {
    switch (by) {
      case "password":
        return { by, user, password: secret, code };
      case "token":
        return { by, token: secret.trim() };
      case "emergency":
        return { by, secret: secret.trim(), reason };
    }
  };
  const submitted = (event: SyntheticEvent) => {
    event.preventDefault();
    if (isBusy) return;
    setBusy(true);
    setProblem(undefined);
    signIn(way())
      .then((session) => {
        setSecret("");
        onSignedIn(session);
      })
      .catch((error: unknown) => {
        setProblem(asProblem(error));
        setCode("");
      })
      .finally(() => setBusy(false));
  };

  return (
    <form className="form" onSubmit={submitted}>
      {by === "password" ? (
        <>
          <TextField label="User" value={user} onChange={setUser} autoComplete="username" />
          <TextField
            label="Password"
            type="password"
            value={secret}
            onChange={setSecret}
            autoComplete="current-password"
          />
          <TextField
            label="Code"
            hint="Six digits from your authenticator."
            inputMode="numeric"
            value={code}
            onChange={setCode}
            autoComplete="one-time-code"
            isCode
          />
        </>
      ) : null}
      {by === "token" ? (
        <TextField
          label="Access token"
          type="password"
          hint={
            <>
              The first one is in <code>control/token</code> of the server&rsquo;s state directory.
              The page forgets it; the session ends with it.
            </>
          }
          value={secret}
          onChange={setSecret}
          isCode
        />
      ) : null}
      {by === "emergency" ? (
        <>
          <Note tone="warning">
            An emergency credential works once. Its use raises an alarm that stays until somebody
            else acknowledges it.
          </Note>
          <TextField
            label="Credential"
            type="password"
            value={secret}
            onChange={setSecret}
            isCode
          />
          <TextField
            label="Reason"
            hint="It is written to the access log."
            value={reason}
            onChange={setReason}
            isLong
          />
        </>
      ) : null}
      {problem === undefined ? null : <ProblemNote problem={problem} />}
      <Button type="submit" look="primary" isBusy={isBusy}>
        {submit}
      </Button>
    </form>
  );
}
