import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useStore } from "../../lib/store";
import { Panel } from "../../ui/Panel";
import {
  axisStyle,
  BINARY_STEPS,
  CHART_HEIGHT,
  colour,
  TIME_AXIS,
  VALUE_AXIS,
} from "../../ui/plot";
import { theme } from "../../ui/theme";

export interface Series<Figure extends string> {
  label: string;
  figure: Figure;
  colour: 1 | 2 | 3 | 4;
}

interface Props<Figure extends string> {
  title: string;
  unit: string;
  show: (value: number) => string;
  /** Steps of the axis are powers of two. */
  isBinary?: boolean;
  /** The least that the axis reaches to. */
  least: number;
  series: readonly Series<Figure>[];
  rates: readonly Point<Figure>[];
}

type Point<Figure extends string> = { atMs: number } & Readonly<Record<Figure, number | null>>;

/** What is shown of the past, in seconds: at first less. */
const SPAN_S = 300;
const SPAN_LEAST_S = 60;

/** A live chart; its newest values are text above it. */
export function Chart<Figure extends string>({
  title,
  unit,
  show,
  isBinary = false,
  least,
  series,
  rates,
}: Props<Figure>) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const chosen = useStore(theme);
  const newest = rates.at(-1);

  useEffect(() => {
    const box = place.current;
    if (box === null) return undefined;
    const drawn = new uPlot(
      optionsOf(box, { show, isBinary, least, series }),
      [[], ...series.map(() => [])] as uPlot.AlignedData,
      box,
    );
    plot.current = drawn;
    const sizes = new ResizeObserver(() =>
      drawn.setSize({ width: box.clientWidth, height: CHART_HEIGHT }),
    );
    sizes.observe(box);
    return () => {
      sizes.disconnect();
      drawn.destroy();
      plot.current = null;
    };
  }, [show, isBinary, least, series, chosen]);

  useEffect(() => {
    const times = rates.map(({ atMs }) => atMs / 1000);
    const values = series.map(({ figure }) => rates.map((each) => finite(each[figure])));
    plot.current?.setData([times, ...values] as uPlot.AlignedData);
  }, [rates, series, chosen]);

  const values = series.map(({ label, figure, colour }) => {
    const value = newest?.[figure];
    const text =
      value === undefined
        ? "\u2026"
        : value === null
          ? "none"
          : Number.isFinite(value)
            ? show(value)
            : "over 68.7 s";
    return { label, colour, text };
  });
  return (
    <Panel title={title} aside={<span className="small soft">{unit}</span>}>
      <ul className="legend">
        {values.map(({ label, colour, text }) => (
          <li key={label}>
            <span className={`legend-line legend-line-${colour}`} aria-hidden="true" />
            {label} <strong className="number">{text}</strong>
          </li>
        ))}
      </ul>
      <div
        ref={place}
        className="chart"
        role="img"
        aria-label={`${title}: ${values.map(({ label, text }) => `${label} ${text}`).join(", ")}`}
      />
    </Panel>
  );
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

function timeOfDay(unixSeconds: number): string {
  return clock.format(unixSeconds * 1000);
}

/** From the first reading to now, in seconds since 1970. */
function spanFrom(first: number | null): [number, number] {
  const now = Date.now() / 1000;
  return [Math.max(now - SPAN_S, Math.min(first ?? now, now - SPAN_LEAST_S)), now];
}

function finite(value: number | null): number | null {
  return value !== null && Number.isFinite(value) ? value : null;
}

function optionsOf<Figure extends string>(
  box: HTMLElement,
  {
    show,
    isBinary,
    least,
    series,
  }: Required<Pick<Props<Figure>, "show" | "isBinary" | "least" | "series">>,
): uPlot.Options {
  const axis = axisStyle();
  return {
    width: box.clientWidth,
    height: CHART_HEIGHT,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { time: true, range: (_, first) => spanFrom(first) },
      y: { range: (_, __, most) => [0, Math.max(most * 1.1, least)] },
    },
    axes: [
      { ...axis, size: TIME_AXIS, values: (_, splits) => splits.map(timeOfDay) },
      {
        ...axis,
        size: VALUE_AXIS,
        values: (_, splits) => splits.map(show),
        ...(isBinary ? { incrs: BINARY_STEPS } : {}),
      },
    ],
    series: [
      {},
      ...series.map((each, index) => ({
        label: each.label,
        stroke: colour(`--series-${each.colour}`),
        width: 2,
        // Lines differ by more than their colour.
        ...(index === 0 ? {} : { dash: [6, 3] }),
        points: { show: false },
        spanGaps: false,
      })),
    ],
  };
}
