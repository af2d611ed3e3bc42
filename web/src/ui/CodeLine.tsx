import { useState } from "react";
import { IconButton } from "./Button";

const SAID_MS = 2_000;

/** A line to copy into a terminal. */
export function CodeLine({ label, text }: { label: string; text: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), SAID_MS);
  };
  return (
    <div className="code-line">
      <span className="code-label">{label}</span>
      <code>{text}</code>
      <IconButton
        icon="copy"
        label={isCopied ? "Copied" : `Copy: ${label}`}
        onPress={() => void copy()}
      />
      <span className="unseen" role="status">
        {isCopied ? "Copied" : ""}
      </span>
    </div>
  );
}
