import { useRef } from "react";
import { Button } from "../../ui/Button";
import type { VmDisplay } from "./vmDisplay";

/** Brings up the keyboard of a phone, which comes only for a field. */
export function TouchKeyboard({ shown, isDisabled }: { shown: VmDisplay; isDisabled: boolean }) {
  const field = useRef<HTMLTextAreaElement>(null);
  return (
    <span className="touch-keyboard">
      <Button
        isDisabled={isDisabled}
        onPress={() => {
          const box = field.current;
          if (box === null) return;
          box.value = shown.beginTyped();
          box.focus();
          box.setSelectionRange(box.value.length, box.value.length);
        }}
      >
        Keyboard
      </Button>
      <textarea
        ref={field}
        className="screen-typed"
        aria-label="What is typed goes to the guest"
        tabIndex={-1}
        autoCapitalize="none"
        autoComplete="off"
        autoCorrect="off"
        spellCheck={false}
        onChange={({ currentTarget: box }) => {
          const kept = shown.takeTyped(box.value);
          if (kept !== box.value) box.value = kept;
        }}
      />
    </span>
  );
}
