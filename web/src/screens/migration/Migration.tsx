import { lazy, Suspense } from "react";
import type { Schemas } from "../../api/types";
import { bytes, duration } from "../../lib/units";
import { useStore } from "../../lib/store";
import { Waiting } from "../../ui/Notes";
import { Facts, Panel } from "../../ui/Panel";
import { Mark, type Tone } from "../../ui/Status";
import { passesOfTasks, verdictOf, type Pass, type Verdict } from "./passing";

// The charts' library comes when there is something to draw.
const PassingCharts = lazy(() => import("./PassingCharts"));

const VERDICTS: Readonly<Record<Verdict, readonly [Tone, "tick" | "half" | "triangle", string]>> = {
  converges: ["good", "tick", "Comes to an end"],
  slowed: ["warning", "half", "Comes to an end, slowed down"],
  diverges: ["bad", "triangle", "Does not come to an end"],
};

const NONE: readonly Pass[] = [];

/** What was read of a move; nothing if its memory did not pass while somebody looked. */
export function usePasses(task: string): readonly Pass[] {
  return useStore(passesOfTasks).get(task) ?? NONE;
}

/** How the memory of a VM passes, or has passed, to another host. */
export function Migration({
  task,
  passing,
}: {
  task: string;
  /** The present rates, while it passes. */
  passing?: Schemas["Passing"] | null | undefined;
}) {
  const passes = usePasses(task);
  if (passes.length === 0) return null;
  return (
    <>
      {passing === undefined || passing === null ? null : (
        <Now passing={passing} left={passes.at(-1)?.left ?? 0} />
      )}
      <Suspense fallback={<Waiting lines={6} />}>
        <PassingCharts passes={passes} />
      </Suspense>
    </>
  );
}

function Now({ passing, left }: { passing: Schemas["Passing"]; left: number }) {
  const { seconds_left, slowed_percent, bytes_per_second, changed_bytes_per_second } = passing;
  const [tone, shape, word] = VERDICTS[verdictOf(passing)];
  return (
    <Panel
      title="Its memory passes to the other host"
      aside={
        <Mark tone={tone} shape={shape}>
          {word}
        </Mark>
      }
    >
      <Facts
        facts={[
          { label: "Sent", value: `${bytes(bytes_per_second)}/s` },
          { label: "Changed by the guest", value: `${bytes(changed_bytes_per_second)}/s` },
          { label: "Remaining", value: bytes(left) },
          {
            label: "Time left",
            value: typeof seconds_left === "number" ? `about ${duration(seconds_left)}` : "no end",
          },
          {
            label: "Processors",
            value: slowed_percent > 0 ? `slowed down by ${slowed_percent} %` : "at full speed",
          },
        ]}
      />
    </Panel>
  );
}
