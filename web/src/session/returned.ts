/** What an identity provider has put into this page's address. */
export interface Returned {
  state: string;
  code: string;
  iss?: string;
}

/** Takes a provider's answer out of the address, so that it stays in no history. */
export function takeReturned(): Returned | undefined {
  if (!location.pathname.startsWith("/sign-in/")) return undefined;
  const query = new URLSearchParams(location.search);
  const [state, code, iss] = [query.get("state"), query.get("code"), query.get("iss")];
  if (state === null || code === null) return undefined;
  history.replaceState(null, "", location.pathname);
  return { state, code, ...(iss === null ? {} : { iss }) };
}
