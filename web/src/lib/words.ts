/** `key_unavailable` as a person reads it: key unavailable. */
export function words(name: string): string {
  return name
    .replaceAll("_", " ")
    .replaceAll(/\bvm\b/g, "VM")
    .replace(/\btpm\b/, "TPM");
}

export function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A text of a form that may be left empty. */
export function optional(text: string): string | undefined {
  const trimmed = text.trim();
  return trimmed === "" ? undefined : trimmed;
}

/** Words that begin a sentence of the API and are the name of nothing. */
const PLAIN =
  /^(the|a|an|asked|no|it|its|this|that|all|some|there|was|is|send|sign|start|stop|try|give|use)\b/;
const IDENTIFIER = /^[a-z]+(_[a-z]+)+/;

/** A message of the API as a sentence; a name at its beginning stays as it is. */
export function sentence(message: string): string {
  const named = message.replace(IDENTIFIER, words);
  return PLAIN.test(named) ? capital(named) : named;
}
