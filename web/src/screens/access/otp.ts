const CODES = "algorithm=SHA1&digits=6&period=30";

/** The address that authenticators read (key URI format), as the command line prints it. */
export function otpAddress(user: string, site: string, secret: string): string {
  const account = `${encodeURIComponent(user)}%40${encodeURIComponent(site)}`;
  const of = `secret=${encodeURIComponent(secret)}&issuer=Strongroom`;
  return `otpauth://totp/Strongroom:${account}?${of}&${CODES}`;
}
