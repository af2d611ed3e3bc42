import { Link, useSearchParams } from "wouter";
import { useAsk } from "../../api/ask";
import type { Schemas, VmSummary } from "../../api/types";
import { addresses } from "../../app/addresses";
import { useEstate } from "../../live/useLive";
import { count, plural } from "../../lib/units";
import { covers } from "../../session/rights";
import { Needs } from "../../session/Needs";
import { Button } from "../../ui/Button";
import { Empty, Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { sealOf } from "../../ui/Status";
import { Table, type Column } from "../../ui/Table";
import { When } from "../../ui/When";
import { readersOf, type Reader, type Way } from "./readers";
import { scopeInWords } from "./privileges";

const MS = 1_000;

const WAYS: Readonly<Record<Way, string>> = {
  console: "console and screen",
  export: "dumps and copies of disks",
  decrypt: "decryption",
  guest_control: "what the guest boots",
};

export function ReviewTab() {
  return (
    <Needs operation="access_review">
      <Review />
    </Needs>
  );
}

function Review() {
  const { data, error, isPending, refetch, isFetching } = useAsk("access_review", {});
  return (
    <>
      <Note>
        <p>
          Who may do what, by the roles that are given now. That you read it is in the access log.
        </p>
      </Note>
      {error === null ? null : <ProblemNote problem={error} retry={() => void refetch()} />}
      {isPending ? <Waiting lines={8} /> : null}
      {data === undefined ? null : (
        <>
          <Readers review={data} />
          <div className="halves">
            <Unused review={data} />
            <Counts review={data} />
          </div>
          <div>
            <Button icon="restart" isPending={isFetching} onPress={() => void refetch()}>
              Read again
            </Button>
          </div>
        </>
      )}
    </>
  );
}

/** Whether somebody could read what a VM has. */
function reads({ scope, sealed, clear }: Reader, vm: VmSummary): boolean {
  const isSealed = sealOf(vm) === "sealed";
  return covers(scope, { vm }) && (isSealed ? sealed : clear).length > 0;
}

function Readers({ review }: { review: Schemas["Review"] }) {
  const [query] = useSearchParams();
  const { vms } = useEstate();
  const name = query.get("vm");
  const vm = vms.find((each) => each.name === name);
  const all = readersOf(review);
  const readers =
    name === null ? all : vm === undefined ? [] : all.filter((reader) => reads(reader, vm));
  return (
    <Panel
      title={name === null ? "Who could read what guests have" : `Who could read what ${name} has`}
      isFlush
      aside={name === null ? null : <Link href={addresses.access("review")}>Of all VMs</Link>}
    >
      {readers.length === 0 ? (
        <Empty icon="people" title="No user, group or token">
          Only who has the first token of the control plane&rsquo;s machine, or an emergency
          credential.
        </Empty>
      ) : (
        <Table
          label="Who could read"
          columns={COLUMNS}
          rows={readers}
          keyOf={({ kind, who, role, where }) => `${kind} ${who} ${role} ${where}`}
        />
      )}
      <p className="panel-line soft">
        Besides: {plural(review.unlimited_tokens, "first token")} of the control plane&rsquo;s
        machine, {plural(review.emergency_credentials?.length ?? 0, "emergency credential")}, and
        root on a host that runs the VM. Each console, copy and dump is on record.
      </p>
    </Panel>
  );
}

const ways = (of: readonly Way[]) =>
  of.length === 0 ? "no" : of.map((way) => WAYS[way]).join(", ");

const COLUMNS: readonly Column<Reader>[] = [
  {
    name: "Who",
    cell: ({ who, kind }) =>
      kind === "user" ? <Link href={addresses.user(who)}>{who}</Link> : `${who} (${kind})`,
  },
  { name: "Where", cell: ({ where }) => where },
  { name: "By role", cell: ({ role }) => role },
  { name: "Encrypted VMs", cell: ({ sealed }) => ways(sealed) },
  { name: "VMs in plain text", cell: ({ clear }) => ways(clear) },
];

/** What gives rights and may not have to: never used, or about to end. */
function Unused({ review: { users, tokens } }: { review: Schemas["Review"] }) {
  const idle = users.filter(
    ({ grants, last_sign_in_unix_seconds: last }) => grants.length > 0 && typeof last !== "number",
  );
  return (
    <Panel title="Have rights and never signed in">
      {idle.length === 0 ? (
        <p className="soft">Every user with a role has signed in.</p>
      ) : (
        <ul className="bullets">
          {idle.map(({ name }) => (
            <li key={name}>
              <Link href={addresses.user(name)}>{name}</Link>
            </li>
          ))}
        </ul>
      )}
      {tokens.length === 0 ? null : (
        <>
          <h3 className="spaced">Tokens, by their end</h3>
          <ul className="bullets">
            {[...tokens]
              .sort((one, other) => one.expires_unix_seconds - other.expires_unix_seconds)
              .map(({ id, name, role, scope, expires_unix_seconds }) => (
                <li key={id}>
                  {name}: {role} for {scopeInWords(scope)}, ends{" "}
                  <When ms={expires_unix_seconds * MS} />
                </li>
              ))}
          </ul>
        </>
      )}
    </Panel>
  );
}

function Counts({ review }: { review: Schemas["Review"] }) {
  const { users, tokens, roles, sessions = [], identity_providers = [] } = review;
  return (
    <Panel title="In numbers">
      <ul className="bullets">
        <li>{plural(users.length, "user")}</li>
        <li>{plural(identity_providers.length, "identity provider")}</li>
        <li>{plural((review.group_grants ?? []).length, "role")} given to groups</li>
        <li>{plural(tokens.length, "token")} for programs</li>
        <li>
          {plural(roles.length, "role")}, {count(roles.filter(({ built_in }) => !built_in).length)}{" "}
          of the site&rsquo;s own
        </li>
        <li>{plural(sessions.length, "session")} now</li>
      </ul>
    </Panel>
  );
}
