import { useState, type SyntheticEvent } from "react";
import { useSearchParams } from "wouter";
import { quoted } from "../../actions/action";
import { useAsk } from "../../api/ask";
import { OPERATIONS } from "../../api/generated/operations";
import type { Schemas } from "../../api/types";
import { optional } from "../../lib/words";
import { Needs } from "../../session/Needs";
import { Button } from "../../ui/Button";
import { CodeLine } from "../../ui/CodeLine";
import { SelectField, TextField } from "../../ui/Field";
import { Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Facts, Panel } from "../../ui/Panel";
import { PERMITS, scopeInWords } from "./privileges";

const NAMES = Object.keys(OPERATIONS).sort();

export function ExplainTab() {
  return (
    <Needs operation="access_explain">
      <Explain />
    </Needs>
  );
}

/** Why somebody may, or may not, do something; the question is in the address. */
function Explain() {
  const [query, setQuery] = useSearchParams();
  const question = {
    user: query.get("user") ?? "",
    operation: query.get("operation") ?? "",
    vm: query.get("vm") ?? "",
  };
  const users = useAsk("user_list", { query: { limit: 1000 } });
  const [draft, setDraft] = useState(question);
  const ask = (event: SyntheticEvent) => {
    event.preventDefault();
    const vm = optional(draft.vm);
    setQuery({ user: draft.user, operation: draft.operation, ...(vm === undefined ? {} : { vm }) });
  };
  const isAsked = question.user !== "" && question.operation !== "";
  return (
    <>
      <Panel title="Why may somebody do something, or not?">
        <form className="form" onSubmit={ask}>
          <div className="field-row">
            <SelectField
              label="User"
              value={draft.user}
              onChange={(user) => setDraft({ ...draft, user })}
              options={[
                { value: "", label: "Choose a user" },
                ...(users.data?.items ?? []).map(({ name }) => ({ value: name, label: name })),
              ]}
            />
            <SelectField
              label="Operation"
              value={draft.operation}
              onChange={(operation) => setDraft({ ...draft, operation })}
              options={[
                { value: "", label: "Choose an operation" },
                ...NAMES.map((name) => ({ value: name, label: name })),
              ]}
            />
            <TextField
              label="VM"
              hint="For the whole site if empty."
              value={draft.vm}
              onChange={(vm) => setDraft({ ...draft, vm })}
              isOptional
            />
          </div>
          <div>
            <Button
              type="submit"
              look="primary"
              isDisabled={draft.user === "" || draft.operation === ""}
            >
              Explain
            </Button>
          </div>
        </form>
      </Panel>
      {isAsked ? <Answer question={question} /> : null}
    </>
  );
}

interface Question {
  user: string;
  operation: string;
  vm: string;
}

function Answer({ question: { user, operation, vm } }: { question: Question }) {
  const { data, error, isPending } = useAsk("access_explain", {
    body: { user, operation, ...(vm === "" ? {} : { vm }) },
  });
  const place = vm === "" ? "the whole site" : vm;
  const command = ["strongroom", "access", "explain", user, operation];
  return (
    <div aria-live="polite" className="stack">
      {error === null ? null : <ProblemNote problem={error} />}
      {isPending ? <Waiting lines={3} /> : null}
      {data === undefined ? null : (
        <>
          <Note
            tone={data.allowed ? "good" : "warning"}
            title={`${user} ${data.allowed ? "may" : "may not"} ${operation} on ${place}`}
          >
            <p>{reasonOf(data)}</p>
          </Note>
          <Panel title="Why">
            <Facts
              facts={[
                { label: "It takes", value: <Privileges of={data.needs} none="no privilege" /> },
                {
                  label: "Missing",
                  value: <Privileges of={data.lacks} none="nothing" />,
                },
                {
                  label: "Roles that count there",
                  value:
                    data.grants.length === 0
                      ? "none"
                      : data.grants
                          .map(({ role, scope }) => `${role} for ${scopeInWords(scope)}`)
                          .join("; "),
                },
              ]}
            />
          </Panel>
          <CodeLine
            label="Command"
            text={[...command, ...(vm === "" ? [] : ["--vm", vm])].map(quoted).join(" ")}
          />
        </>
      )}
    </div>
  );
}

function reasonOf({ allowed, lacks, grants }: Schemas["Explanation"]): string {
  if (allowed) return "Its roles there have all that it takes. Parts of a request can take more.";
  return grants.length === 0
    ? "It has no role that counts there."
    : `Its roles there lack ${lacks.join(", ")}.`;
}

function Privileges({ of, none }: { of: Schemas["PrivilegeSet"]; none: string }) {
  if (of.length === 0) return <span className="soft">{none}</span>;
  return (
    <ul className="stack-small">
      {of.map((privilege) => (
        <li key={privilege}>
          <code>{privilege}</code> <span className="soft">{PERMITS[privilege]}</span>
        </li>
      ))}
    </ul>
  );
}
