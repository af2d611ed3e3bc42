import { useState } from "react";
import { Button, IconButton } from "../../ui/Button";
import type { VmConsole } from "./vmConsole";

/** Finds a text in the output that is kept. */
export function FindBar({ shown, onClose }: { shown: VmConsole; onClose: () => void }) {
  const [text, setText] = useState("");
  const [isMissing, setMissing] = useState(false);
  const find = (isUp: boolean) => setMissing(text !== "" && !shown.find(text, isUp));
  return (
    <search
      className="guest-find"
      onKeyDown={(event) => {
        if (event.key === "Escape") onClose();
      }}
    >
      <input
        className="input input-code"
        aria-label="Find in the output"
        value={text}
        autoComplete="off"
        spellCheck={false}
        ref={focus}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter") find(!event.shiftKey);
        }}
      />
      <Button onPress={() => find(true)}>Above</Button>
      <Button onPress={() => find(false)}>Below</Button>
      <span role="status" className="small soft">
        {isMissing ? "It is not in the output" : ""}
      </span>
      <IconButton icon="close" label="End the search" onPress={onClose} />
    </search>
  );
}

function focus(input: HTMLInputElement | null): void {
  input?.focus();
}
