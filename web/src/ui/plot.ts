import type uPlot from "uplot";

/** The height of a chart, in pixels, as in the style `.chart`. */
export const CHART_HEIGHT = 180;
/** The room for the words of the axis of times, and of that of values, in pixels. */
export const TIME_AXIS = 28;
export const VALUE_AXIS = 76;
/** Steps of an axis of bytes. */
export const BINARY_STEPS = Array.from({ length: 60 }, (_, power) => 2 ** power);

/** A colour of the design language, as a canvas takes it. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** What all axes have. */
export function axisStyle(): uPlot.Axis {
  return {
    stroke: colour("--text-soft"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    font: `12px ${colour("--font")}`,
  };
}

/** Lines differ by more than their colour. */
export const DASHES: readonly (readonly number[])[] = [[], [6, 3], [2, 3]];
