import { send } from "../api/call";
import { problemOf } from "../api/problem";

/** How people can come in, as the server tells strangers. */
export interface Ways {
  passwords: boolean;
  providers: readonly { name: string; page: string | null }[];
  emergency: boolean;
}

export type SignIn =
  | { by: "password"; user: string; password: string; code?: string }
  | { by: "token"; token: string }
  | { by: "provider"; state: string; code: string; iss?: string }
  | { by: "emergency"; credential: string; reason: string };

export interface PageSession {
  session: string;
  name: string;
  expires_unix_seconds: number;
}

async function ask<Answer>(method: string, address: string, body?: unknown): Promise<Answer> {
  const answer = await send(method, address, body, {});
  if (!answer.ok) throw await problemOf(answer);
  return (await answer.json()) as Answer;
}

export const waysIn = (): Promise<Ways> => ask("GET", "/v1/sign-in-ways");
export const signIn = (way: SignIn): Promise<PageSession> => ask("POST", "/v1/page-sessions", way);
export const signOut = (): Promise<unknown> => ask("DELETE", "/v1/page-sessions/current");
export const signOutEverywhere = (): Promise<{ ended: number }> =>
  ask("DELETE", "/v1/page-sessions");

/** Goes to the page of an identity provider, which leads back to /sign-in/PROVIDER. */
export async function goToProvider(provider: string): Promise<void> {
  const redirect = `${location.origin}/sign-in/${encodeURIComponent(provider)}`;
  const { authorization_url } = await ask<{ authorization_url: string }>(
    "POST",
    "/v1/page-sign-ins",
    {
      provider,
      redirect,
    },
  );
  location.assign(authorization_url);
}
