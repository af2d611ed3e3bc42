/** `key_unavailable` as a person reads it: key unavailable. */
export function words(name: string): string {
  return name
    .replaceAll("_", " ")
    .replaceAll("vm ", "VM ")
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
