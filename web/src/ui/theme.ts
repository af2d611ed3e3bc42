/* The choice of a theme; what else the page keeps in the browser is in preferences.ts. */
/* eslint-disable no-restricted-globals */
import { Store } from "../lib/store";

export type Theme = "system" | "light" | "dark";

const NAME = "strongroom-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

function remembered(): Theme {
  const kept = localStorage.getItem(NAME);
  return kept === "light" || kept === "dark" ? kept : "system";
}

export const theme = new Store<Theme>(remembered());

function apply(): void {
  const chosen = theme.state();
  const shown = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
  document.documentElement.dataset["theme"] = shown;
}

export function beginTheme(): void {
  dark.addEventListener("change", apply);
  apply();
}

export function chooseTheme(chosen: Theme): void {
  if (chosen === "system") localStorage.removeItem(NAME);
  else localStorage.setItem(NAME, chosen);
  theme.become(chosen);
  apply();
}
