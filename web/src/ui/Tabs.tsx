import { useEffect, useRef } from "react";
import { Link, useLocation } from "wouter";

export interface Tab {
  label: string;
  to: string;
  count?: number;
}

/** The parts of a screen, each with an address. */
export function Tabs({ label, tabs }: { label: string; tabs: readonly Tab[] }) {
  const [here] = useLocation();
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => {
    // On a phone it may be beyond the edge.
    const current = list.current?.querySelector("[aria-current]");
    current?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [here]);
  return (
    <nav className="tabs" aria-label={label}>
      <ul ref={list}>
        {tabs.map(({ label: name, to, count }) => (
          <li key={to}>
            <Link
              href={to}
              className="tab"
              aria-current={here === to.split("?")[0] ? "page" : undefined}
            >
              {name}
              {count === undefined ? null : <span className="tab-count number">{count}</span>}
            </Link>
          </li>
        ))}
      </ul>
    </nav>
  );
}
