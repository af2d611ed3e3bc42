import { useState } from "react";
import { useStore } from "../../lib/store";
import { Button } from "../../ui/Button";
import { Dialog } from "../../ui/Dialog";
import { TextField } from "../../ui/Field";
import { say } from "../../ui/toasts";
import { CLIPBOARD_MAX, type VmDisplay } from "./vmDisplay";

interface Props {
  shown: VmDisplay;
  vm: string;
  onClose: () => void;
}

async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    say({ tone: "good", text: "Copied" });
  } catch {
    say({ tone: "bad", text: "The browser does not let this page copy" });
  }
}

/** Texts between two clipboards. None goes from one to the other before somebody says so. */
export function ClipboardDialog({ shown, vm, onClose }: Props) {
  const [text, setText] = useState("");
  const copied = useStore(shown.copied);
  const isOnlyViewed = useStore(shown.isViewOnly);
  const isTooLong = text.length > CLIPBOARD_MAX;
  const cannot = text === "" || isTooLong || isOnlyViewed;
  return (
    <Dialog title="Clipboard" size="wide" onClose={onClose}>
      <TextField
        label={`Text for ${vm}`}
        isLong
        isCode
        value={text}
        onChange={setText}
        hint="A guest without an agent for its clipboard takes no text; it can be typed there."
        fault={isTooLong ? `At most ${CLIPBOARD_MAX} characters.` : undefined}
      />
      <div className="buttons">
        <Button
          look="primary"
          isDisabled={cannot}
          onPress={() => {
            shown.giveClipboard(text);
            onClose();
          }}
        >
          Put it into the guest&rsquo;s clipboard
        </Button>
        <Button
          isDisabled={cannot}
          onPress={() => {
            shown.type(text);
            shown.focus();
            onClose();
          }}
        >
          Type it
        </Button>
      </div>
      <div className="field">
        <p className="field-label">Text that was copied in {vm}</p>
        {copied === "" ? (
          <p className="soft">None yet.</p>
        ) : (
          <>
            <pre className="guest-copied">{copied}</pre>
            <div className="buttons">
              <Button icon="copy" onPress={() => void copy(copied)}>
                Copy
              </Button>
            </div>
          </>
        )}
      </div>
    </Dialog>
  );
}
