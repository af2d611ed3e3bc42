import { useSyncExternalStore } from "react";
import { Button } from "../ui/Button";

interface WithKeyboard {
  keyboard?: { lock?: () => Promise<void>; unlock?: () => void };
}

function subscribe(listener: () => void): () => void {
  document.addEventListener("fullscreenchange", listener);
  return () => document.removeEventListener("fullscreenchange", listener);
}

/**
 * The whole page becomes as large as the display, so that dialogs are seen over the guest. Where
 * the browser permits it, keys that are its own reach the guest then.
 */
async function enter(): Promise<void> {
  await document.documentElement.requestFullscreen();
  await (navigator as WithKeyboard).keyboard?.lock?.();
}

export function FullScreenButton() {
  const isFull = useSyncExternalStore(subscribe, () => document.fullscreenElement !== null);
  // A phone may have none.
  if (!document.fullscreenEnabled) return null;
  const label = isFull ? "Leave full screen" : "Full screen";
  return (
    <Button
      icon="full"
      aria-label={label}
      onPress={() => {
        if (isFull) void document.exitFullscreen();
        else void enter().catch(() => undefined);
      }}
    >
      <span className="guest-word">{label}</span>
    </Button>
  );
}
