import { useState } from "react";
import { ActionDialog } from "../../actions/ActionDialog";
import { createToken, revokeToken, rotateToken } from "../../actions/access";
import { useAsk } from "../../api/ask";
import { limitsOf, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { plural } from "../../lib/units";
import { optional } from "../../lib/words";
import { useMay } from "../../session/useMay";
import { TextField } from "../../ui/Field";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Menu } from "../../ui/Menu";
import { Empty } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { ShownOnce } from "../../ui/ShownOnce";
import { Table, type Column } from "../../ui/Table";
import { When } from "../../ui/When";
import { RoleField } from "./RoleField";
import { ScopeField } from "./ScopeField";
import { scopeOf, wholeSite } from "./scope";
import { scopeInWords } from "./privileges";

type Token = Schemas["Token"];
type Asked = { kind: "create" } | { kind: "rotate" | "revoke"; token: Token };

const MS = 1_000;
const DAY_S = 86_400;
const VALID_MAX_DAYS = 366;

export function TokensTab() {
  const asked = useAsk("token_list", { query: { limit: 1000 } });
  const may = useMay();
  const [dialog, ask] = useState<Asked>();
  const [made, setMade] = useState<Schemas["NewToken"]>();
  const close = () => ask(undefined);
  const took = (answer: unknown) => {
    const token = answer as Schemas["NewToken"];
    if (typeof token.token === "string") setMade(token);
  };
  const columns: readonly Column<Token>[] = [
    { name: "Name", cell: ({ name }) => <strong>{name}</strong> },
    { name: "Role", cell: ({ role, scope }) => `${role} for ${scopeInWords(scope)}` },
    { name: "Of", cell: ({ user }) => user ?? "the site" },
    {
      name: "Is",
      cell: ({ key_sha256 }) =>
        typeof key_sha256 === "string" ? (
          <>
            a key, <code>{key_sha256.slice(0, 16)}&hellip;</code>
          </>
        ) : (
          "a bearer token"
        ),
    },
    {
      name: "Made",
      cell: ({ created_unix_seconds }) => <When ms={created_unix_seconds * MS} />,
    },
    {
      name: "Ends",
      cell: ({ expires_unix_seconds }) => <When ms={expires_unix_seconds * MS} />,
    },
    {
      name: "Actions",
      isUnseen: true,
      cell: (token) => (
        <Menu
          label={`Actions for ${token.name}`}
          icon="more"
          look="quiet"
          choices={[
            may("token_rotate", {
              id: "rotate",
              label: "Rotate\u2026",
              hint: "Another secret; the present one ends",
              ...(typeof token.key_sha256 === "string"
                ? { refusal: "It is a key: the program makes another one." }
                : {}),
              choose: () => ask({ kind: "rotate", token }),
            }),
            may("token_revoke", {
              id: "revoke",
              label: "Revoke\u2026",
              isDangerous: true,
              choose: () => ask({ kind: "revoke", token }),
            }),
          ]}
        />
      ),
    },
  ];
  return (
    <Panel
      title={asked.data === undefined ? "Tokens" : plural(asked.data.total, "token")}
      isFlush
      aside={
        <MayButton
          operation="token_create"
          look="primary"
          icon="plus"
          onPress={() => ask({ kind: "create" })}
        >
          Create a token&hellip;
        </MayButton>
      }
    >
      <Listed
        asked={asked}
        empty={
          <Empty icon="key" title="There is no token for programs">
            A program that asks the API has a token with a role and an end; it never has more rights
            than the user that made it.
          </Empty>
        }
      >
        {(tokens) => (
          <Table label="Tokens" columns={columns} rows={tokens} keyOf={({ id }) => id} />
        )}
      </Listed>
      {dialog?.kind === "create" ? <CreateDialog onClose={close} onMade={took} /> : null}
      {dialog?.kind === "rotate" ? (
        <ActionDialog
          title={`Rotate ${dialog.token.name}`}
          submit="Rotate"
          actions={[rotateToken(dialog.token.name)]}
          onClose={close}
          onDone={([outcome]) => took(outcome?.answer)}
        >
          <p>Programs with the present token are refused at once, until they have the new one.</p>
        </ActionDialog>
      ) : null}
      {dialog?.kind === "revoke" ? (
        <ActionDialog
          title={`Revoke ${dialog.token.name}`}
          submit="Revoke"
          actions={[revokeToken(dialog.token.name)]}
          confirm={dialog.token.name}
          onClose={close}
          loses={<p>Programs that have it are refused at once, for good.</p>}
        />
      ) : null}
      {made === undefined ? null : (
        <ShownOnce
          title={`The token ${made.info.name}`}
          label="Token"
          secret={made.token ?? ""}
          file={`${made.info.name}.token`}
          onClose={() => setMade(undefined)}
        >
          <p>
            The command line takes it from a file:{" "}
            <code>strongroom vm list --api-token-file {made.info.name}.token</code>
          </p>
        </ShownOnce>
      )}
    </Panel>
  );
}

function CreateDialog({
  onClose,
  onMade,
}: {
  onClose: () => void;
  onMade: (answer: unknown) => void;
}) {
  const [name, setName] = useState("");
  const [role, setRole] = useState("");
  const [draft, setDraft] = useState(wholeSite);
  const [days, setDays] = useState("90");
  const [pem, setPem] = useState("");
  const [nowS] = useState(() => Math.floor(Date.now() / MS));
  const scope = scopeOf(draft);
  const fault = textFault(limitsOf("CreateToken", "name"), name);
  const pemFault = pem === "" ? undefined : textFault(limitsOf("CreateToken", "certificate"), pem);
  const valid = /^[0-9]+$/.test(days) ? Number(days) : 0;
  const daysFault =
    valid < 1 || valid > VALID_MAX_DAYS ? `From 1 to ${VALID_MAX_DAYS} days.` : undefined;
  const isReady =
    fault === undefined && pemFault === undefined && daysFault === undefined && role !== "";
  return (
    <ActionDialog
      title="Create a token"
      submit="Create"
      size="wide"
      actions={
        isReady && scope !== undefined
          ? [
              createToken({
                name,
                role,
                scope,
                nowS,
                validS: valid * DAY_S,
                certificate: optional(pem),
              }),
            ]
          : []
      }
      onClose={onClose}
      onDone={([outcome]) => onMade(outcome?.answer)}
    >
      <div className="field-row">
        <TextField
          label="Name"
          value={name}
          onChange={setName}
          fault={name === "" ? undefined : fault}
        />
        <RoleField value={role} onChange={setRole} />
      </div>
      <ScopeField scope={draft} onChange={setDraft} />
      <TextField
        label="Valid for, in days"
        inputMode="numeric"
        value={days}
        onChange={setDays}
        fault={daysFault}
      />
      <TextField
        label="Certificate of the program&rsquo;s key"
        hint="As PEM: its key takes the place of the token, and nothing secret is shown."
        value={pem}
        onChange={setPem}
        fault={pemFault}
        isLong
        isCode
        isOptional
      />
    </ActionDialog>
  );
}
