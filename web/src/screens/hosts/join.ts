import { quoted } from "../../actions/action";
import type { Schemas } from "../../api/types";

/** What the new machine runs, with its token in a file. */
export function joinCommand({
  enrolment,
  authority,
  name,
}: Pick<Schemas["HostToken"], "enrolment" | "authority" | "name">): string {
  return [
    ...["strongroom", "serve", "--role", "host"],
    ...["--join", enrolment, "--token-file", `${name}.token`, "--fingerprint", authority],
  ]
    .map(quoted)
    .join(" ");
}
