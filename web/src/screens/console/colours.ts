import type { ITheme } from "@xterm/xterm";

// The sixteen colours that guests know by number. What they write in them is made readable by the
// terminal, which keeps a contrast of 4.5 to whatever is behind it.
const LIGHT: ITheme = {
  black: "#14181c",
  red: "#b3231b",
  green: "#17703c",
  yellow: "#8a5300",
  blue: "#1f5fae",
  magenta: "#7d3c98",
  cyan: "#0b6656",
  white: "#dde1e5",
  brightBlack: "#505a64",
  brightRed: "#cf3a31",
  brightGreen: "#1e8a4b",
  brightYellow: "#a46700",
  brightBlue: "#2f78d0",
  brightMagenta: "#9b51b8",
  brightCyan: "#0f8571",
  brightWhite: "#f5f6f7",
};
const DARK: ITheme = {
  black: "#20262b",
  red: "#ff8b80",
  green: "#5fce8a",
  yellow: "#e9b454",
  blue: "#7db7f7",
  magenta: "#d7a6f0",
  cyan: "#55c9ac",
  white: "#c8cfd5",
  brightBlack: "#97a2ab",
  brightRed: "#ffa99f",
  brightGreen: "#83dfa6",
  brightYellow: "#f4cb80",
  brightBlue: "#a3cdfb",
  brightMagenta: "#e5c2f6",
  brightCyan: "#7bdac2",
  brightWhite: "#ffffff",
};

/** The page's colours, as a terminal takes them. */
export function colours(): ITheme {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string) => style.getPropertyValue(name).trim();
  return {
    ...(document.documentElement.dataset["theme"] === "dark" ? DARK : LIGHT),
    background: of("--surface-sunken"),
    foreground: of("--text"),
    cursor: of("--accent"),
    cursorAccent: of("--on-accent"),
    selectionBackground: of("--line-strong"),
  };
}
