import { useState } from "react";
import { ActionDialog } from "../../actions/ActionDialog";
import { createProvider, deleteProvider, setProviderSecret } from "../../actions/access";
import { useAsk } from "../../api/ask";
import { limitsOf, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { duration, plural } from "../../lib/units";
import { optional } from "../../lib/words";
import { Needs } from "../../session/Needs";
import { useMay } from "../../session/useMay";
import { SelectField, TextField } from "../../ui/Field";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Menu } from "../../ui/Menu";
import { Empty } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { Table, type Column } from "../../ui/Table";
import { GrantDialog } from "./GrantDialog";
import { Grants } from "./Grants";

type Provider = Schemas["IdentityProvider"];
type Asked = { kind: "create" } | { kind: "secret" | "remove" | "group"; provider: Provider };

export function GroupsTab() {
  return (
    <Needs operation="identity_provider_list">
      <Providers />
    </Needs>
  );
}

function Providers() {
  const asked = useAsk("identity_provider_list", { query: { limit: 1000 } });
  const grants = useAsk("grant_list", { query: { limit: 1000 } });
  const groups = (grants.data?.items ?? []).filter(
    ({ group }) => group !== undefined && group !== null,
  );
  const may = useMay();
  const [dialog, ask] = useState<Asked>();
  const close = () => ask(undefined);
  const columns: readonly Column<Provider>[] = [
    { name: "Name", cell: ({ name }) => <strong>{name}</strong> },
    { name: "Issuer", cell: ({ issuer }) => <code>{issuer}</code> },
    {
      name: "Client",
      cell: ({ client_id, has_secret }) =>
        has_secret ? client_id : `${client_id}, without a secret`,
    },
    { name: "Claims", cell: ({ user_claim, groups_claim }) => `${user_claim}, ${groups_claim}` },
    { name: "Session", cell: ({ session_s }) => duration(session_s) },
    { name: "Pages", cell: ({ pages }) => pages.join(", ") },
    {
      name: "Actions",
      isUnseen: true,
      cell: (provider) => (
        <Menu
          label={`Actions for ${provider.name}`}
          icon="more"
          look="quiet"
          choices={[
            may("grant_create", {
              id: "group",
              label: "Give a group a role\u2026",
              choose: () => ask({ kind: "group", provider }),
            }),
            may("identity_provider_set", {
              id: "secret",
              label: "Another secret\u2026",
              choose: () => ask({ kind: "secret", provider }),
            }),
            may("identity_provider_delete", {
              id: "remove",
              label: "Remove\u2026",
              isDangerous: true,
              choose: () => ask({ kind: "remove", provider }),
            }),
          ]}
        />
      ),
    },
  ];
  return (
    <>
      <Panel
        title={asked.data === undefined ? "Providers" : plural(asked.data.total, "provider")}
        isFlush
        aside={
          <MayButton
            operation="identity_provider_create"
            look="primary"
            icon="plus"
            onPress={() => ask({ kind: "create" })}
          >
            Add a provider&hellip;
          </MayButton>
        }
      >
        <Listed
          asked={asked}
          empty={
            <Empty icon="people" title="There is no identity provider">
              With one (OpenID Connect), people sign in there, and their groups have roles here.
            </Empty>
          }
        >
          {(providers) => (
            <Table
              label="Identity providers"
              columns={columns}
              rows={providers}
              keyOf={({ id }) => id}
            />
          )}
        </Listed>
      </Panel>
      {groups.length === 0 ? null : (
        <Panel title="Roles of groups" isFlush>
          <Grants grants={groups} withHolders />
        </Panel>
      )}
      {dialog?.kind === "create" ? <CreateDialog onClose={close} /> : null}
      {dialog?.kind === "secret" ? (
        <SecretDialog name={dialog.provider.name} onClose={close} />
      ) : null}
      {dialog?.kind === "group" ? (
        <GrantDialog provider={dialog.provider.name} onClose={close} />
      ) : null}
      {dialog?.kind === "remove" ? (
        <ActionDialog
          title={`Remove ${dialog.provider.name}`}
          submit="Remove"
          actions={[deleteProvider(dialog.provider.name)]}
          confirm={dialog.provider.name}
          onClose={close}
          loses={
            <p>
              The sessions of its people end, and its groups have no roles any more. A provider of
              the same name that is added later has none of them.
            </p>
          }
        />
      ) : null}
    </>
  );
}

function SecretDialog({ name, onClose }: { name: string; onClose: () => void }) {
  const [secret, setSecret] = useState("");
  const fault = textFault(limitsOf("SetIdentityProvider", "client_secret"), secret);
  return (
    <ActionDialog
      title={`Another secret at ${name}`}
      submit="Change"
      actions={fault === undefined ? [setProviderSecret(name, secret)] : []}
      onClose={onClose}
    >
      <p>The secret of this site&rsquo;s client there. Nothing else of a provider changes.</p>
      <TextField
        label="Secret"
        type="password"
        value={secret}
        onChange={setSecret}
        fault={secret === "" ? undefined : fault}
      />
    </ActionDialog>
  );
}

const SESSIONS = [
  { value: "1800", label: "30 minutes" },
  { value: "3600", label: "1 hour" },
  { value: "14400", label: "4 hours" },
  { value: "28800", label: "8 hours" },
  { value: "43200", label: "12 hours" },
];

function CreateDialog({ onClose }: { onClose: () => void }) {
  const [draft, setDraft] = useState({
    name: "",
    issuer: "",
    clientId: "",
    secret: "",
    scopes: "profile",
    userClaim: "",
    groupsClaim: "",
    session: "3600",
    authorities: "",
  });
  const change = (next: Partial<typeof draft>) => setDraft({ ...draft, ...next });
  const form = "CreateIdentityProvider";
  const faults = {
    name: textFault(limitsOf(form, "name"), draft.name),
    issuer: textFault(limitsOf(form, "issuer"), draft.issuer),
    clientId: textFault(limitsOf(form, "client_id"), draft.clientId),
  };
  const isReady = Object.values(faults).every((fault) => fault === undefined);
  // This page is where the provider sends browsers back to.
  const page = `${location.origin}/sign-in/${encodeURIComponent(draft.name)}`;
  return (
    <ActionDialog
      title="Add an identity provider"
      submit="Add"
      size="wide"
      actions={
        isReady
          ? [
              createProvider({
                name: draft.name,
                issuer: draft.issuer,
                clientId: draft.clientId,
                secret: optional(draft.secret),
                scopes: draft.scopes.split(/[\s,]+/).filter((scope) => scope !== ""),
                userClaim: optional(draft.userClaim),
                groupsClaim: optional(draft.groupsClaim),
                pages: [page],
                sessionS: Number(draft.session),
                authorities: optional(draft.authorities),
              }),
            ]
          : []
      }
      onClose={onClose}
    >
      <p>
        At the provider, this site is a client for the authorization code flow, which may redirect
        to <code>{page}</code> and <code>http://127.0.0.1/callback/{draft.name || "NAME"}</code>. It
        is asked at once, and refused if it does not answer.
      </p>
      <div className="field-row">
        <TextField
          label="Name"
          hint="The names of its users begin with it."
          value={draft.name}
          onChange={(name) => change({ name })}
          fault={draft.name === "" ? undefined : faults.name}
        />
        <TextField
          label="Issuer"
          placeholder="https://id.example.com/realms/ops"
          value={draft.issuer}
          onChange={(issuer) => change({ issuer })}
          fault={draft.issuer === "" ? undefined : faults.issuer}
          isCode
        />
      </div>
      <div className="field-row">
        <TextField
          label="Client"
          value={draft.clientId}
          onChange={(clientId) => change({ clientId })}
          fault={draft.clientId === "" ? undefined : faults.clientId}
          isCode
        />
        <TextField
          label="Secret of the client"
          type="password"
          value={draft.secret}
          onChange={(secret) => change({ secret })}
          isOptional
        />
      </div>
      <div className="field-row">
        <TextField
          label="Claim with the user&rsquo;s name"
          placeholder="preferred_username"
          value={draft.userClaim}
          onChange={(userClaim) => change({ userClaim })}
          isOptional
          isCode
        />
        <TextField
          label="Claim with the groups"
          placeholder="groups"
          value={draft.groupsClaim}
          onChange={(groupsClaim) => change({ groupsClaim })}
          isOptional
          isCode
        />
      </div>
      <div className="field-row">
        <TextField
          label="Scopes besides openid"
          value={draft.scopes}
          onChange={(scopes) => change({ scopes })}
          isOptional
          isCode
        />
        <SelectField
          label="A session lasts"
          value={draft.session}
          options={SESSIONS}
          onChange={(session) => change({ session })}
        />
      </div>
      <TextField
        label="Certificates of its authorities"
        hint="As PEM; those of the control plane&rsquo;s machine if empty."
        value={draft.authorities}
        onChange={(authorities) => change({ authorities })}
        isLong
        isCode
        isOptional
      />
    </ActionDialog>
  );
}
