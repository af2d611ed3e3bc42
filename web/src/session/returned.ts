/** What an identity provider has put into this page's address (RFC 6749, 4.1.2). */
export type Returned = { state: string; code: string; iss?: string } | { refusal: string };

/** Takes a provider's answer out of the address, so that it stays in no history. */
export function takeReturned(): Returned | undefined {
  if (!location.pathname.startsWith("/sign-in/")) return undefined;
  const query = new URLSearchParams(location.search);
  const [state, code, iss] = [query.get("state"), query.get("code"), query.get("iss")];
  const error = query.get("error");
  if (error === null && (state === null || code === null)) return undefined;
  history.replaceState(null, "", location.pathname);
  if (error !== null || state === null || code === null) {
    return { refusal: wordOf(error ?? "") };
  }
  return { state, code, ...(iss === null ? {} : { iss }) };
}

/** An error's name. Anybody can make a link with one, so it is not shown as a sentence. */
export function wordOf(error: string): string {
  return /^[a-z_]{1,40}$/.test(error) ? error.replaceAll("_", " ") : "another error";
}
