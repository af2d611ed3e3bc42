import { Mark } from "../../ui/Status";
import { cryptoState } from "./crypto";

export function CryptoMark({ state }: { state: string | null | undefined }) {
  const { tone, word } = cryptoState(state);
  return (
    <Mark tone={tone} shape={tone === "good" ? "lock" : tone === "bad" ? "lock-open" : "lock-half"}>
      {word}
    </Mark>
  );
}
