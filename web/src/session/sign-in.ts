import { call } from "../api/call";
import { Problem } from "../api/problem";
import type { RequestOf, Schemas } from "../api/types";

export type Ways = Schemas["SignInWays"];
export type PageSession = Schemas["BrowserSession"];
export type SignIn = NonNullable<RequestOf<"page_sign_in">["body"]>;

const FINAL = { isSignIn: true };

/** How people can come in, as the server tells strangers. */
export const waysIn = () => call("sign_in_ways", {}, FINAL);
export const signIn = (body: SignIn) => call("page_sign_in", { body }, FINAL);
export const signOut = () => call("page_sign_out", {}, FINAL);
export const signOutEverywhere = () => call("page_sign_out_everywhere", {}, FINAL);

/** Goes to the page of an identity provider, which leads back to /sign-in/PROVIDER. */
export async function goToProvider(provider: string): Promise<void> {
  const { providers } = await waysIn();
  const redirect = providers.find(({ name }) => name === provider)?.page;
  if (redirect === undefined || redirect === null) {
    throw new Problem(
      "not_found",
      `the provider ${provider} does not send browsers back to ${location.origin}`,
      `\`strongroom access provider add\` with \`--page ${location.origin}/sign-in/${provider}\``,
    );
  }
  const begun = await call("page_sign_in_begin", { body: { provider, redirect } }, FINAL);
  location.assign(begun.authorization_url);
}
