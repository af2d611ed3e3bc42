import { Store } from "../../lib/store";

export interface Settings {
  fontSize: number;
  /** Output is in the accessibility tree, and read as it comes. */
  isRead: boolean;
}

export const FONT_SIZES = { least: 8, most: 32, usual: 14 } as const;

/** How consoles look in this tab. */
export const settings = new Store<Settings>({ fontSize: FONT_SIZES.usual, isRead: false });

export function changeFontSize(by: number): void {
  const now = settings.state();
  const fontSize = Math.min(FONT_SIZES.most, Math.max(FONT_SIZES.least, now.fontSize + by));
  settings.become({ ...now, fontSize });
}

export function switchReading(): void {
  const now = settings.state();
  settings.become({ ...now, isRead: !now.isRead });
}
