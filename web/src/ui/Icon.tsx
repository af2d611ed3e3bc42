const PATHS = {
  overview: "M3 3h6v6H3zM11 3h6v4h-6zM11 9h6v8h-6zM3 11h6v6H3z",
  vm: "M3 4h14v9H3zM7 17h6M10 13v4",
  host: "M3 4h14v5H3zM3 11h14v5H3zM6 6.5h.01M6 13.5h.01",
  datastore:
    "M3 5c0-1.1 3.1-2 7-2s7 .9 7 2-3.1 2-7 2-7-.9-7-2zM3 5v10c0 1.1 3.1 2 7 2s7-.9 7-2V5M3 10c0 1.1 3.1 2 7 2s7-.9 7-2",
  disk: "M4 3h12v14H4zM7 13h6M10 6a2 2 0 1 0 .01 0",
  network: "M10 3v5M5 17v-4h10v4M10 8v5M8 3h4v5H8zM3 17h4M13 17h4",
  key: "M12.5 3a4.5 4.5 0 1 0 1.2 8.8M9.5 10.5 3 17v-3M5.5 14.5l2 2M13 7h.01",
  policy: "M10 2.5 4 5v5c0 4 2.7 6.5 6 7.5 3.3-1 6-3.5 6-7.5V5zM7.5 10l2 2 3.5-4",
  people:
    "M7.5 9a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM2 17c0-3 2.5-5 5.5-5s5.5 2 5.5 5M13 3.5a3 3 0 0 1 0 5.5M15 12.5c1.8.8 3 2.4 3 4.5",
  task: "M4 4h12v12H4zM7 10l2.2 2.2L13.5 8",
  alarm: "M10 3 2.5 16.5h15zM10 8v4M10 14.3h.01",
  event: "M3 10h3l2-5 4 10 2-5h3",
  audit: "M5 2.5h8l3 3v12H5zM8 8h5M8 11h5M8 14h3",
  settings: "M4 6h6M14 6h2M4 14h2M10 14h6M12 4v4M8 12v4",
  search: "M9 15A6 6 0 1 0 9 3a6 6 0 0 0 0 12zM13.5 13.5 17 17",
  close: "M5 5l10 10M15 5 5 15",
  menu: "M3 5h14M3 10h14M3 15h14",
  more: "M4 10a.6.6 0 1 0 1.2 0a.6.6 0 1 0-1.2 0M9.4 10a.6.6 0 1 0 1.2 0a.6.6 0 1 0-1.2 0M14.8 10a.6.6 0 1 0 1.2 0a.6.6 0 1 0-1.2 0",
  plus: "M10 4v12M4 10h12",
  down: "M5 8l5 5 5-5",
  right: "M8 5l5 5-5 5",
  back: "M12 5l-5 5 5 5",
  copy: "M7 7h9v9H7zM4 13V4h9",
  sun: "M10 13.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM10 2v2M10 16v2M2 10h2M16 10h2M4.5 4.5l1.4 1.4M14.1 14.1l1.4 1.4M4.5 15.5l1.4-1.4M14.1 5.9l1.4-1.4",
  moon: "M16 12.5A6.5 6.5 0 1 1 8 4a5 5 0 0 0 8 8.5z",
  system: "M3 4h14v9H3zM7 17h6",
  snapshot: "M3 6h3l1.5-2h5L14 6h3v10H3zM10 13.5a3 3 0 1 0 0-6 3 3 0 0 0 0 6z",
  play: "M6 4l10 6-10 6z",
  stop: "M5 5h10v10H5z",
  restart: "M15.5 7A6 6 0 1 0 16 11M16 3v4h-4",
  out: "M8 3H3v14h5M12 6l4 4-4 4M16 10H7",
  info: "M10 17.5a7.5 7.5 0 1 0 0-15 7.5 7.5 0 0 0 0 15zM10 9v5M10 6.2h.01",
  folder: "M3 5h5l2 2h7v9H3z",
  console: "M3 4h14v12H3zM6 8l2.5 2L6 12M10 12.5h4",
  full: "M3 7V3h4M13 3h4v4M17 13v4h-4M7 17H3v-4",
} as const;

export type IconName = keyof typeof PATHS;

/** A drawing beside words: it says nothing that they do not say. */
export function Icon({ name, size = 18 }: { name: IconName; size?: number }) {
  return (
    <svg
      className="icon"
      width={size}
      height={size}
      viewBox="0 0 20 20"
      aria-hidden="true"
      focusable="false"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}
