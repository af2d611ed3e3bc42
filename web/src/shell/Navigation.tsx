import { Link, useLocation } from "wouter";
import { NAVIGATION, type Entry } from "../app/screens";
import { useAsk } from "../api/ask";
import { useRefusal } from "../session/useMe";
import { Icon } from "../ui/Icon";

export function Navigation({ onChosen }: { onChosen?: () => void }) {
  const refusal = useRefusal();
  return (
    <nav className="navigation" aria-label="Screens">
      {NAVIGATION.map(({ label, entries }) => {
        const shown = entries.filter(
          ({ takes }) => takes === undefined || refusal(takes) === undefined,
        );
        if (shown.length === 0) return null;
        return (
          <div key={label} className="navigation-section">
            <p className="navigation-label" id={`section-${label}`}>
              {label}
            </p>
            <ul aria-labelledby={`section-${label}`}>
              {shown.map((entry) => (
                <NavigationEntry
                  key={entry.to}
                  entry={entry}
                  {...(onChosen === undefined ? {} : { onChosen })}
                />
              ))}
            </ul>
          </div>
        );
      })}
    </nav>
  );
}

function NavigationEntry({
  entry: { label, to, icon },
  onChosen,
}: {
  entry: Entry;
  onChosen?: () => void;
}) {
  const [here] = useLocation();
  const isHere = to === "/" ? here === "/" : here === to || here.startsWith(`${to}/`);
  return (
    <li>
      <Link
        href={to}
        className="navigation-entry"
        aria-current={isHere ? "page" : undefined}
        onClick={() => onChosen?.()}
      >
        <Icon name={icon} />
        {label}
        {icon === "alarm" ? <AlarmCount /> : null}
      </Link>
    </li>
  );
}

function AlarmCount() {
  const { data } = useAsk("alarm_list", { query: { limit: 1000 } });
  const critical = data?.items.filter(({ severity }) => severity === "critical").length ?? 0;
  if (data === undefined || data.total === 0) return null;
  return (
    <span className={critical > 0 ? "count count-bad" : "count count-warning"}>
      <span className="unseen">raised: </span>
      {data.total}
    </span>
  );
}
