/* Beside the theme, what the page keeps in the browser: how close rows are, and in which zone
   times are shown. */
/* eslint-disable no-restricted-globals */
import { Store } from "../lib/store";
import { showTimesIn } from "../lib/units";

export type Density = "comfortable" | "compact";

const DENSITY = "strongroom-density";
const ZONE = "strongroom-time-zone";

/** The zone of the browser. */
export const OWN_ZONE = "";

function isZone(name: string): boolean {
  try {
    new Intl.DateTimeFormat("en", { timeZone: name });
    return true;
  } catch {
    return false;
  }
}

function rememberedZone(): string {
  const kept = localStorage.getItem(ZONE) ?? OWN_ZONE;
  return kept !== OWN_ZONE && isZone(kept) ? kept : OWN_ZONE;
}

export const density = new Store<Density>(
  localStorage.getItem(DENSITY) === "compact" ? "compact" : "comfortable",
);
export const zone = new Store(rememberedZone());

function apply(): void {
  document.documentElement.dataset["density"] = density.state();
  const chosen = zone.state();
  showTimesIn(chosen === OWN_ZONE ? undefined : chosen);
}

export function beginPreferences(): void {
  apply();
}

export function chooseDensity(chosen: Density): void {
  if (chosen === "comfortable") localStorage.removeItem(DENSITY);
  else localStorage.setItem(DENSITY, chosen);
  density.become(chosen);
  apply();
}

export function chooseZone(chosen: string): void {
  if (chosen === OWN_ZONE) localStorage.removeItem(ZONE);
  else localStorage.setItem(ZONE, chosen);
  // Times are written in the new zone before anybody hears of it.
  showTimesIn(chosen === OWN_ZONE ? undefined : chosen);
  zone.become(chosen);
}
