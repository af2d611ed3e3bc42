import type { ReactNode } from "react";
import type { PowerState, Schemas } from "../api/types";
import { words } from "../lib/words";

export type Tone = "good" | "notice" | "warning" | "bad" | "off";
type Shape =
  | "disc"
  | "ring"
  | "bars"
  | "half"
  | "cross"
  | "moon"
  | "question"
  | "triangle"
  | "lock"
  | "lock-half"
  | "lock-open"
  | "tick"
  | "key";

const SHAPES: Readonly<Record<Shape, ReactNode>> = {
  disc: <circle cx="7" cy="7" r="4.5" fill="currentColor" stroke="none" />,
  ring: <circle cx="7" cy="7" r="4" />,
  bars: <path d="M5 3.5v7M9 3.5v7" />,
  half: (
    <>
      <circle cx="7" cy="7" r="4.5" />
      <path d="M7 2.5a4.5 4.5 0 0 1 0 9z" fill="currentColor" stroke="none" />
    </>
  ),
  cross: <path d="M3.5 3.5l7 7M10.5 3.5l-7 7" />,
  moon: <path d="M10.8 8.8A4.6 4.6 0 1 1 5.6 2.8a3.6 3.6 0 0 0 5.2 6z" fill="currentColor" />,
  question: <path d="M4.8 5A2.2 2.2 0 1 1 7 7.2v1.3M7 11.2h.01" />,
  triangle: <path d="M7 2 1.5 11.8h11zM7 5.8v2.8M7 10.2h.01" />,
  lock: (
    <>
      <rect x="3" y="6" width="8" height="6" rx="1" fill="currentColor" />
      <path d="M4.8 6V4.5a2.2 2.2 0 0 1 4.4 0V6" />
    </>
  ),
  "lock-half": (
    <>
      <rect x="3" y="6" width="8" height="6" rx="1" />
      <path d="M3 12V7l4-1v6zM4.8 6V4.5a2.2 2.2 0 0 1 4.4 0V6" fill="currentColor" stroke="none" />
      <path d="M4.8 6V4.5a2.2 2.2 0 0 1 4.4 0V6" />
    </>
  ),
  "lock-open": (
    <>
      <rect x="3" y="6" width="8" height="6" rx="1" />
      <path d="M4.8 6V3.8a2.2 2.2 0 0 1 4.3-.6" />
    </>
  ),
  tick: <path d="M2.5 7.5l3 3 6-7" />,
  key: <path d="M9 2.5a2.8 2.8 0 1 0 .01 0M7 7.2 2.5 11.5v-2M4.2 9.9l1.3 1.3" />,
};

/** A state as a word with a shape; the colour only repeats what they say. */
export function Mark({ tone, shape, children }: { tone: Tone; shape: Shape; children: ReactNode }) {
  return (
    <span className={`mark mark-${tone}`}>
      <svg
        className="mark-shape"
        width="14"
        height="14"
        viewBox="0 0 14 14"
        aria-hidden="true"
        focusable="false"
      >
        {SHAPES[shape]}
      </svg>
      <span className="cut">{children}</span>
    </span>
  );
}

const POWER: Readonly<Record<PowerState, readonly [Tone, Shape, string]>> = {
  running: ["good", "disc", "Running"],
  stopped: ["off", "ring", "Off"],
  starting: ["notice", "half", "Starting"],
  stopping: ["notice", "half", "Stopping"],
  paused: ["warning", "bars", "Paused"],
  suspended: ["notice", "moon", "Suspended"],
  crashed: ["bad", "cross", "Crashed"],
  key_unavailable: ["bad", "key", "Waits for its key"],
  unknown: ["warning", "question", "Unknown"],
};

export function powerWord(power: PowerState): string {
  return POWER[power][2];
}

export function Power({ power }: { power: PowerState }) {
  const [tone, shape, word] = POWER[power];
  return (
    <Mark tone={tone} shape={shape}>
      {word}
    </Mark>
  );
}

export type Seal = "sealed" | "partly" | "clear";

/** Whether a VM's disks are encrypted. */
export function sealOf({
  encrypted,
  partly_clear,
}: {
  encrypted: boolean;
  partly_clear?: boolean;
}): Seal {
  if (partly_clear === true) return "partly";
  return encrypted ? "sealed" : "clear";
}

const SEALS: Readonly<Record<Seal, readonly [Tone, Shape, string]>> = {
  sealed: ["good", "lock", "Sealed"],
  partly: ["warning", "lock-half", "Partly clear"],
  clear: ["off", "lock-open", "Clear"],
};

export function sealWord(seal: Seal): string {
  return SEALS[seal][2];
}

export function SealMark({ seal }: { seal: Seal }) {
  const [tone, shape, word] = SEALS[seal];
  return (
    <Mark tone={tone} shape={shape}>
      {word}
    </Mark>
  );
}

const TASKS: Readonly<Record<Schemas["TaskState"], readonly [Tone, Shape, string]>> = {
  running: ["notice", "half", "Running"],
  done: ["good", "tick", "Done"],
  failed: ["bad", "cross", "Failed"],
  cancelled: ["off", "ring", "Cancelled"],
};

export function TaskMark({ state }: { state: Schemas["TaskState"] }) {
  const [tone, shape, word] = TASKS[state];
  return (
    <Mark tone={tone} shape={shape}>
      {word}
    </Mark>
  );
}

export function SeverityMark({ severity }: { severity: Schemas["Severity"] }) {
  return severity === "critical" ? (
    <Mark tone="bad" shape="cross">
      Critical
    </Mark>
  ) : (
    <Mark tone="warning" shape="triangle">
      Warning
    </Mark>
  );
}

const KEYS: Readonly<Record<Schemas["KeyState"], readonly [Tone, Shape]>> = {
  active: ["good", "key"],
  pending: ["notice", "half"],
  deactivated: ["warning", "bars"],
  compromised: ["bad", "triangle"],
  destroyed: ["bad", "cross"],
  unavailable: ["bad", "question"],
  unknown: ["warning", "question"],
};

export function KeyMark({ state }: { state: Schemas["KeyState"] }) {
  const [tone, shape] = KEYS[state];
  return (
    <Mark tone={tone} shape={shape}>
      {words(state)}
    </Mark>
  );
}
