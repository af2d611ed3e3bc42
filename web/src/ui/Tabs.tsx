import { Link, useLocation } from "wouter";

export interface Tab {
  label: string;
  to: string;
  count?: number;
}

/** The parts of a screen, each with an address. */
export function Tabs({ label, tabs }: { label: string; tabs: readonly Tab[] }) {
  const [here] = useLocation();
  return (
    <nav className="tabs" aria-label={label}>
      <ul>
        {tabs.map(({ label: name, to, count }) => (
          <li key={to}>
            <Link href={to} className="tab" aria-current={here === to ? "page" : undefined}>
              {name}
              {count === undefined ? null : <span className="tab-count number">{count}</span>}
            </Link>
          </li>
        ))}
      </ul>
    </nav>
  );
}
