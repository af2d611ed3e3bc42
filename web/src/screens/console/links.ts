const LENGTH_MAX = 2_048;

/** An address of a guest's output that may be opened after a question; nothing if it is none. */
export function safeLink(text: string): URL | undefined {
  if (text.length > LENGTH_MAX || !URL.canParse(text)) return undefined;
  const url = new URL(text);
  const isOfTheWeb = url.protocol === "https:" || url.protocol === "http:";
  // A name before the host makes one address look like another.
  return isOfTheWeb && url.username === "" && url.password === "" ? url : undefined;
}
