import { useAsk } from "../../api/ask";
import type { Vm } from "../../api/types";
import { sentence } from "../../lib/words";
import { Prose } from "../../ui/Prose";

const ALL = { query: { limit: 1000 } };

/** What somebody can do about a key that a VM waits for: what its alarm says. */
export function NextStep({ vm: { id, power } }: { vm: Vm }) {
  const waits = power === "key_unavailable";
  const { data } = useAsk("alarm_list", ALL, { enabled: waits });
  const alarm = data?.items.find(
    ({ kind, object }) => kind === "key_unavailable" && object.kind === "vm" && object.id === id,
  );
  if (!waits || alarm === undefined) return null;
  return (
    <p>
      <Prose text={sentence(alarm.next_step)} />
    </p>
  );
}
