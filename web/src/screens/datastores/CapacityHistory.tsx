import { useEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { useStore } from "../../lib/store";
import { bytes, moment } from "../../lib/units";
import { sentence } from "../../lib/words";
import { SelectField } from "../../ui/Field";
import { Empty, ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import {
  axisStyle,
  BINARY_STEPS,
  CHART_HEIGHT,
  colour,
  DASHES,
  TIME_AXIS,
  VALUE_AXIS,
} from "../../ui/plot";
import { theme } from "../../ui/theme";
import { samplesOf, SPANS, type Sample, type SpanName } from "./history";
import { trendWords } from "./trend";

const LINES = [
  { label: "Used", of: ({ used_bytes }: Sample) => used_bytes },
  { label: "Size", of: ({ total_bytes }: Sample) => total_bytes },
  {
    label: "If all disks were full",
    of: ({ provisioned_bytes }: Sample) => provisioned_bytes,
  },
] as const;

/** What a datastore had in the past, and when it will be full. */
export function CapacityHistory({ store }: { store: Schemas["Datastore"] }) {
  const [span, setSpan] = useState<SpanName>("month");
  const { data, error, isPending } = useAsk("datastore_capacity", {
    path: { datastore: store.name },
  });
  const samples = useMemo(() => (data === undefined ? [] : samplesOf(data, span)), [data, span]);
  return (
    <Panel
      title="Capacity over time"
      aside={
        <SelectField
          label="Time"
          value={span}
          onChange={(chosen) => {
            if (chosen in SPANS) setSpan(chosen as SpanName);
          }}
          options={Object.entries(SPANS).map(([value, { label }]) => ({ value, label }))}
        />
      }
    >
      {error === null ? null : <ProblemNote problem={error} />}
      {isPending ? <Waiting /> : null}
      {data === undefined ? null : (
        <p>
          <strong>{sentence(trendWords(data.trend))}.</strong>
        </p>
      )}
      {data !== undefined && samples.length < 2 ? (
        <Empty icon="datastore" title="There is not enough history for a chart yet">
          The control plane writes down what a datastore has once an hour, while one of its hosts
          reports it. A trend takes seven days.
        </Empty>
      ) : null}
      {samples.length < 2 ? null : <Plot samples={samples} />}
    </Panel>
  );
}

function Plot({ samples }: { samples: readonly Sample[] }) {
  const place = useRef<HTMLDivElement>(null);
  const chosen = useStore(theme);
  useEffect(() => {
    const box = place.current;
    if (box === null) return undefined;
    const data = [
      samples.map(({ at_unix_seconds }) => at_unix_seconds),
      ...LINES.map(({ of }) => samples.map(of)),
    ] as uPlot.AlignedData;
    const drawn = new uPlot(optionsOf(box), data, box);
    const sizes = new ResizeObserver(() =>
      drawn.setSize({ width: box.clientWidth, height: CHART_HEIGHT }),
    );
    sizes.observe(box);
    return () => {
      sizes.disconnect();
      drawn.destroy();
    };
  }, [samples, chosen]);
  const [first, last] = [samples[0], samples.at(-1)];
  if (first === undefined || last === undefined) return null;
  const values = LINES.map(({ label, of }) => `${label} ${bytes(of(first))} to ${bytes(of(last))}`);
  return (
    <>
      <ul className="legend">
        {LINES.map(({ label, of }, index) => (
          <li key={label}>
            <span className={`legend-line legend-line-${index + 1}`} aria-hidden="true" />
            {label} <strong className="number">{bytes(of(last))}</strong>
          </li>
        ))}
      </ul>
      <div
        ref={place}
        className="chart"
        role="img"
        aria-label={`From ${moment(first.at_unix_seconds * 1000)} to ${moment(last.at_unix_seconds * 1000)}: ${values.join(", ")}`}
      />
    </>
  );
}

const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

function optionsOf(box: HTMLElement): uPlot.Options {
  const axis = axisStyle();
  return {
    width: box.clientWidth,
    height: CHART_HEIGHT,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { time: true },
      y: { range: (_, __, most) => [0, Math.max(most * 1.1, 1)] },
    },
    axes: [
      {
        ...axis,
        size: TIME_AXIS,
        values: (_, splits) => splits.map((at) => day.format(at * 1000)),
      },
      {
        ...axis,
        size: VALUE_AXIS,
        values: (_, splits) => splits.map(bytes),
        incrs: BINARY_STEPS,
      },
    ],
    series: [
      {},
      ...LINES.map(({ label }, index) => ({
        label,
        stroke: colour(`--series-${index + 1}`),
        width: 2,
        dash: [...(DASHES[index] ?? [])],
        points: { show: false },
        spanGaps: false,
      })),
    ],
  };
}
