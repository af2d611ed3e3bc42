import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { words } from "../../lib/words";
import { ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { Mark } from "../../ui/Status";
import { When } from "../../ui/When";

const MS = 1_000;

export function KeyProvidersPanel() {
  const { data, error, isPending } = useAsk("key_provider_list", { query: { limit: 1000 } });
  return (
    <Panel title="Key providers" isFlush>
      {error === null ? null : <ProblemNote problem={error} />}
      {isPending ? <Waiting /> : null}
      <ul className="lines">
        {data?.items.map((provider) => (
          <li key={provider.name}>
            <Provider provider={provider} />
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function Provider({ provider }: { provider: Schemas["KeyProvider"] }) {
  const {
    name,
    kind,
    healthy,
    reason,
    last_backup_unix_seconds: backup,
    certificate_expires_unix_seconds: expires,
  } = provider;
  return (
    <div className="line">
      <div className="line-words">
        <strong>{name}</strong>
        <span className="small soft">{words(kind)}</span>
        {typeof reason === "string" ? <span>{reason}</span> : null}
        <span className="small soft">
          {typeof backup === "number" && backup > 0 ? (
            <>
              Last backup <When ms={backup * MS} />
            </>
          ) : (
            "No backup is known"
          )}
          {typeof expires === "number" ? (
            <>
              ; its certificate ends <When ms={expires * MS} />
            </>
          ) : null}
        </span>
      </div>
      {healthy ? (
        <Mark tone="good" shape="tick">
          Answers
        </Mark>
      ) : (
        <Mark tone="bad" shape="cross">
          Does not answer
        </Mark>
      )}
    </div>
  );
}
