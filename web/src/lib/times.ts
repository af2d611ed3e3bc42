/** A time as the command line takes it: 90d, 1h, 30m. */
export function commandTime(seconds: number): string {
  if (seconds % 86_400 === 0) return `${seconds / 86_400}d`;
  if (seconds % 3_600 === 0) return `${seconds / 3_600}h`;
  return seconds % 60 === 0 ? `${seconds / 60}m` : `${seconds}s`;
}

/** A time of the day as the command line takes it: 01:30. */
export function dayTime(minutes: number): string {
  const part = (value: number) => String(value).padStart(2, "0");
  return `${part(Math.floor(minutes / 60))}:${part(minutes % 60)}`;
}

/** The minutes after midnight; nothing if it is no time of the day. */
export function minutesOf(text: string): number | undefined {
  const [, hours, minutes] = /^([01]?[0-9]|2[0-3]):([0-5][0-9])$/.exec(text.trim()) ?? [];
  return hours === undefined ? undefined : Number(hours) * 60 + Number(minutes);
}
