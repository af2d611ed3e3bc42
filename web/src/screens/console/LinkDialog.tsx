import { Button } from "../../ui/Button";
import { Dialog } from "../../ui/Dialog";
import { Note } from "../../ui/Notes";

/** Asks before an address in a guest's output is opened. */
export function LinkDialog({ url, vm, onClose }: { url: URL; vm: string; onClose: () => void }) {
  return (
    <Dialog title={`Open ${url.host}?`} onClose={onClose}>
      <Note tone="warning">
        <p>This address is from the output of {vm}; what writes there has chosen it.</p>
      </Note>
      <p className="guest-address">
        <code>{url.href}</code>
      </p>
      <div className="dialog-foot">
        <Button onPress={onClose}>Cancel</Button>
        <Button
          look="primary"
          onPress={() => {
            window.open(url.href, "_blank", "noopener,noreferrer");
            onClose();
          }}
        >
          Open in a new tab
        </Button>
      </div>
    </Dialog>
  );
}
