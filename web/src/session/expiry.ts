import { Store } from "../lib/store";

/** What waits for a session that is over. */
export interface Waiting {
  /** What a person would call the change; reads have no name and are repeated by themselves. */
  what: string | undefined;
  resume: (again: boolean) => void;
}

/** The requests that wait for somebody to sign in again; nothing while the session lasts. */
export const expired = new Store<readonly Waiting[]>([]);

/** Whether anybody has been signed in since the page was loaded. */
let isKnown = false;

/** Somebody is signed in: what waited goes on, changes only if they are wanted again. */
export function signedIn(repeatChanges: boolean): void {
  isKnown = true;
  const waiting = expired.state();
  expired.become([]);
  for (const { what, resume } of waiting) resume(what === undefined || repeatChanges);
}

/** Waits for a new session. Returns whether to send the request again. */
export function whenSignedIn(what: string | undefined): Promise<boolean> {
  if (!isKnown) return Promise.resolve(false);
  return new Promise((resume) => expired.become([...expired.state(), { what, resume }]));
}
