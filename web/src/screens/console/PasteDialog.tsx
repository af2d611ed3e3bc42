import { useState, type SyntheticEvent } from "react";
import { Button } from "../../ui/Button";
import { Dialog } from "../../ui/Dialog";
import { TextField } from "../../ui/Field";
import { linesOf, PASTE_MAX } from "./paste";
import type { VmConsole } from "./vmConsole";

interface Props {
  shown: VmConsole;
  text: string;
  onClose: () => void;
}

/** Shows what would be pasted, before a guest runs it. */
export function PasteDialog({ shown, text: copied, onClose }: Props) {
  const [text, setText] = useState(copied);
  const lines = linesOf(text);
  const isTooLong = text.length > PASTE_MAX;
  const submitted = (event: SyntheticEvent) => {
    event.preventDefault();
    if (text === "" || isTooLong) return;
    onClose();
    shown.pasteNow(text);
  };
  return (
    <Dialog title="Paste into the console" size="wide" onClose={onClose}>
      <form className="form" onSubmit={submitted}>
        <TextField
          label="Text"
          isLong
          isCode
          value={text}
          onChange={setText}
          hint={
            lines === 0
              ? "It is typed, and not ended by Enter."
              : `${lines === 1 ? "One line" : `${lines} lines`}, each ended by Enter: a shell may run each of them at once. Control characters are left out.`
          }
          fault={
            isTooLong
              ? `At most ${PASTE_MAX} characters: a serial line is slow. Bring more over the network.`
              : undefined
          }
        />
        <div className="dialog-foot">
          <Button onPress={onClose}>Cancel</Button>
          <Button type="submit" look="primary" isDisabled={text === "" || isTooLong}>
            {lines > 1 ? `Paste ${lines} lines` : "Paste"}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
