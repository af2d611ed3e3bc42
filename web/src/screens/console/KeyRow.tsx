import { useStore } from "../../lib/store";
import { KEYS, type Key } from "./keys";
import type { VmConsole } from "./vmConsole";

/** Keys for those whose keyboard has not got them. Their focus stays where it types. */
export function KeyRow({ shown }: { shown: VmConsole }) {
  const isControl = useStore(shown.isControl);
  return (
    <div className="guest-keys" role="group" aria-label="Keys">
      <button
        type="button"
        className="button button-plain"
        aria-pressed={isControl}
        onMouseDown={(event) => event.preventDefault()}
        onClick={() => shown.holdControl()}
      >
        Ctrl
      </button>
      {(Object.keys(KEYS) as Key[]).map((key) => (
        <button
          key={key}
          type="button"
          className="button button-plain"
          aria-label={KEYS[key].says}
          onMouseDown={(event) => event.preventDefault()}
          onClick={() => shown.press(key)}
        >
          {KEYS[key].label}
        </button>
      ))}
    </div>
  );
}
