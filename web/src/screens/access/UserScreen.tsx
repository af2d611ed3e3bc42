import { useState } from "react";
import { Link, useLocation } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { changePassword, deleteUser, renewSecondFactor } from "../../actions/access";
import { useAsk } from "../../api/ask";
import { limitsOf, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { plural } from "../../lib/units";
import { Needs } from "../../session/Needs";
import { useMay } from "../../session/useMay";
import { useMe, useRefusal } from "../../session/useMe";
import { Nowhere } from "../../shell/Nowhere";
import { TextField } from "../../ui/Field";
import { MayButton } from "../../ui/MayButton";
import { Menu } from "../../ui/Menu";
import { Empty, ProblemNote, Waiting } from "../../ui/Notes";
import { Facts, Panel, ScreenHead } from "../../ui/Panel";
import { When } from "../../ui/When";
import { GrantDialog } from "./GrantDialog";
import { Grants } from "./Grants";
import { SecondFactor } from "./SecondFactor";
import { SessionLines } from "./SessionsTab";

const MS = 1_000;

export function UserScreen({ name }: { name: string }) {
  const may = useRefusal()("user_list") === undefined;
  return (
    <>
      {may ? null : (
        <ScreenHead title={name} above={<Link href={addresses.access()}>Users</Link>} />
      )}
      <Needs operation="user_list">
        <Found name={name} />
      </Needs>
    </>
  );
}

function Found({ name }: { name: string }) {
  const { data, error, refetch } = useAsk("user_list", { query: { limit: 1000 } });
  if (error !== null) return <ProblemNote problem={error} retry={() => void refetch()} />;
  if (data === undefined) return <Waiting lines={6} />;
  const user = data.items.find((each) => each.name === name);
  return user === undefined ? <Nowhere /> : <OneUser user={user} />;
}

function OneUser({ user }: { user: Schemas["User"] }) {
  const { last_sign_in_unix_seconds: last } = user;
  const [isGranting, grant] = useState(false);
  const sessions = useAsk("session_list", { query: { limit: 1000 } });
  const own = (sessions.data?.items ?? []).filter((session) => session.user === user.name);
  return (
    <>
      <ScreenHead
        title={user.name}
        above={<Link href={addresses.access()}>Users</Link>}
        actions={<UserActions user={user} />}
      />
      <Panel title="User">
        <Facts
          facts={[
            {
              label: "Last sign-in",
              value: typeof last === "number" ? <When ms={last * MS} /> : "never",
            },
            { label: "Since", value: <When ms={user.created_unix_seconds * MS} /> },
            {
              label: "What it did",
              value: (
                <Link href={`${addresses.audit}?by=${encodeURIComponent(user.name)}`}>
                  In the access log
                </Link>
              ),
            },
            { label: "Id", value: <code>{user.id}</code> },
          ]}
        />
      </Panel>
      <Panel
        title={plural(user.grants.length, "role")}
        isFlush
        aside={
          <MayButton operation="grant_create" icon="plus" onPress={() => grant(true)}>
            Give a role&hellip;
          </MayButton>
        }
      >
        {user.grants.length === 0 ? (
          <Empty icon="people" title="It has no role">
            It can sign in, and sees and does nothing.
          </Empty>
        ) : (
          <Grants grants={user.grants} />
        )}
      </Panel>
      <Panel title={plural(own.length, "session")} isFlush>
        {own.length === 0 ? (
          <p className="panel-line soft">Nobody is signed in as {user.name}.</p>
        ) : (
          <SessionLines sessions={own} />
        )}
      </Panel>
      {isGranting ? <GrantDialog user={user.name} onClose={() => grant(false)} /> : null}
    </>
  );
}

type Asked = "password" | "factor" | "delete";

function UserActions({ user: { name } }: { user: Schemas["User"] }) {
  const may = useMay();
  const [, go] = useLocation();
  const [asked, ask] = useState<Asked>();
  const close = () => ask(undefined);
  return (
    <>
      <Menu
        label={`Actions for ${name}`}
        choices={[
          may("user_password", {
            id: "password",
            label: "Another password\u2026",
            hint: "Ends its sessions",
            choose: () => ask("password"),
          }),
          may("user_second_factor", {
            id: "factor",
            label: "Another second factor\u2026",
            hint: "Ends its sessions",
            choose: () => ask("factor"),
          }),
          may("user_delete", {
            id: "delete",
            label: "Delete\u2026",
            isDangerous: true,
            choose: () => ask("delete"),
          }),
        ]}
      >
        Actions
      </Menu>
      {asked === "password" ? <PasswordDialog name={name} onClose={close} /> : null}
      {asked === "factor" ? <FactorDialog name={name} onClose={close} /> : null}
      {asked === "delete" ? (
        <ActionDialog
          title={`Delete ${name}`}
          submit="Delete"
          actions={[deleteUser(name)]}
          confirm={name}
          onClose={close}
          onDone={() => go(addresses.access())}
          loses={
            <p>
              Its roles, its sessions and the tokens for programs that it made, at once. What it did
              stays in the access log.
            </p>
          }
        />
      ) : null}
    </>
  );
}

interface Named {
  name: string;
  onClose: () => void;
}

function PasswordDialog({ name, onClose }: Named) {
  const isOwn = useMe().name === name;
  const [current, setCurrent] = useState("");
  const [password, setPassword] = useState("");
  const fault = textFault(limitsOf("ChangePassword", "password"), password);
  const isReady = fault === undefined && (!isOwn || current !== "");
  return (
    <ActionDialog
      title={`Another password for ${name}`}
      submit="Change"
      actions={isReady ? [changePassword(name, password, isOwn ? current : undefined)] : []}
      onClose={onClose}
    >
      <p>All sessions of {name} end.</p>
      {isOwn ? <CurrentField value={current} onChange={setCurrent} /> : null}
      <TextField
        label="New password"
        type="password"
        autoComplete="new-password"
        hint="12 characters or more."
        value={password}
        onChange={setPassword}
        fault={password === "" ? undefined : fault}
      />
    </ActionDialog>
  );
}

function CurrentField({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  return (
    <TextField
      label="Your present password"
      type="password"
      autoComplete="current-password"
      value={value}
      onChange={onChange}
    />
  );
}

function FactorDialog({ name, onClose }: Named) {
  const isOwn = useMe().name === name;
  const [current, setCurrent] = useState("");
  const [made, setMade] = useState<Schemas["NewUser"]>();
  if (made !== undefined) {
    return <SecondFactor user={name} secret={made.totp_secret} onClose={onClose} />;
  }
  return (
    <ActionDialog
      title={`Another second factor for ${name}`}
      submit="Make it"
      actions={
        !isOwn || current !== "" ? [renewSecondFactor(name, isOwn ? current : undefined)] : []
      }
      onClose={onClose}
      onDone={([outcome]) => setMade(outcome?.answer as Schemas["NewUser"])}
      staysOpen
    >
      <p>
        The present one counts no more, and all sessions of {name} end. The new secret is shown
        once.
      </p>
      {isOwn ? <CurrentField value={current} onChange={setCurrent} /> : null}
    </ActionDialog>
  );
}
