const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] as const;

/** An amount of bytes: 1.5 GiB. */
export function bytes(value: number): string {
  let unit = 0;
  let rest = value;
  while (rest >= 1024 && unit < BINARY.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || rest >= 100 || Number.isInteger(rest) ? 0 : 1;
  return `${rest.toFixed(digits)} ${BINARY[unit] ?? "B"}`;
}

/** The size as the command line takes it, exactly: 20G. */
export function commandSize(value: number): string {
  const units = ["", "K", "M", "G", "T"];
  let unit = 0;
  let rest = value;
  while (rest !== 0 && rest % 1024 === 0 && unit < units.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${rest}${units[unit] ?? ""}`;
}

/** A number with separators: 10,000. */
const grouped = new Intl.NumberFormat("en");
export function count(value: number): string {
  return grouped.format(value);
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** A duration in its two largest units: 2 h 5 min. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const parts: readonly (readonly [number, string])[] = [
    [86_400, "d"],
    [3_600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const first = parts.findIndex(([length]) => whole >= length);
  const shown = parts.slice(first, first + 2).reduce<{ rest: number; words: string[] }>(
    ({ rest, words }, [length, unit]) => {
      const many = Math.floor(rest / length);
      return {
        rest: rest - many * length,
        words: many > 0 ? [...words, `${many} ${unit}`] : words,
      };
    },
    { rest: whole, words: [] },
  );
  return shown.words.join(" ");
}

/** A latency: 850 ns, 12 us, 3.4 ms, 1.2 s. */
export function latency(nanoseconds: number): string {
  const units: readonly (readonly [number, string])[] = [
    [1e9, "s"],
    [1e6, "ms"],
    [1e3, "\u00b5s"],
    [1, "ns"],
  ];
  const [scale, unit] = units.find(([length]) => nanoseconds >= length) ?? ([1, "ns"] as const);
  const value = nanoseconds / scale;
  return `${value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1)} ${unit}`;
}

function dateAndTimeIn(zone: string | undefined): Intl.DateTimeFormat {
  return new Intl.DateTimeFormat("en-GB", {
    year: "numeric",
    month: "short",
    day: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    ...(zone === undefined ? {} : { timeZone: zone, timeZoneName: "short" }),
  });
}

let dateAndTime = dateAndTimeIn(undefined);

/** Shows moments in a time zone from now on; in that of the machine without one. */
export function showTimesIn(zone: string | undefined): void {
  dateAndTime = dateAndTimeIn(zone);
}

export function moment(unixMs: number): string {
  return dateAndTime.format(unixMs);
}

/** What is nearer than the clock of the page is exact. */
const NOW_S = 10;

/** How long ago, or how soon: 3 min ago, in 2 d. */
export function distance(unixMs: number, nowMs: number): string {
  const seconds = (nowMs - unixMs) / 1000;
  if (Math.abs(seconds) < NOW_S) return "now";
  const length = duration(Math.abs(seconds)).split(" ").slice(0, 2).join(" ");
  return seconds >= 0 ? `${length} ago` : `in ${length}`;
}
