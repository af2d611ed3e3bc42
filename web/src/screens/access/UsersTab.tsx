import { useState } from "react";
import { Link } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { createUser } from "../../actions/access";
import { useAsk } from "../../api/ask";
import { limitsOf, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { plural } from "../../lib/units";
import { Needs } from "../../session/Needs";
import { TextField } from "../../ui/Field";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Empty } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { Table, type Column } from "../../ui/Table";
import { When } from "../../ui/When";
import { SecondFactor } from "./SecondFactor";
import { scopeInWords } from "./privileges";

const MS = 1_000;

export function UsersTab() {
  return (
    <Needs operation="user_list">
      <Users />
    </Needs>
  );
}

function Users() {
  const asked = useAsk("user_list", { query: { limit: 1000 } });
  const [isCreating, create] = useState(false);
  return (
    <Panel
      title={asked.data === undefined ? "Users" : plural(asked.data.total, "user")}
      isFlush
      aside={
        <MayButton operation="user_create" look="primary" icon="plus" onPress={() => create(true)}>
          Create a user&hellip;
        </MayButton>
      }
    >
      <Listed
        asked={asked}
        empty={
          <Empty icon="people" title="There is no user yet">
            Until there is one, the first token of the control plane&rsquo;s machine is the only way
            in. A user has a password, a second factor, and the roles that you give.
          </Empty>
        }
      >
        {(users) => <Table label="Users" columns={COLUMNS} rows={users} keyOf={({ id }) => id} />}
      </Listed>
      {isCreating ? <CreateDialog onClose={() => create(false)} /> : null}
    </Panel>
  );
}

const COLUMNS: readonly Column<Schemas["User"]>[] = [
  { name: "Name", cell: ({ name }) => <Link href={addresses.user(name)}>{name}</Link> },
  {
    name: "Roles",
    cell: ({ grants }) =>
      grants.length === 0 ? (
        <span className="soft">none: nothing is permitted</span>
      ) : (
        grants.map(({ role, scope }) => `${role} for ${scopeInWords(scope)}`).join("; ")
      ),
  },
  {
    name: "Last sign-in",
    cell: ({ last_sign_in_unix_seconds: last }) =>
      typeof last === "number" ? <When ms={last * MS} /> : "never",
  },
  {
    name: "Since",
    cell: ({ created_unix_seconds }) => <When ms={created_unix_seconds * MS} />,
  },
];

function CreateDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [made, setMade] = useState<Schemas["NewUser"]>();
  const fault = textFault(limitsOf("CreateUser", "name"), name);
  const passwordFault = textFault(limitsOf("CreateUser", "password"), password);
  if (made !== undefined) {
    return <SecondFactor user={made.user.name} secret={made.totp_secret} onClose={onClose} />;
  }
  return (
    <ActionDialog
      title="Create a user"
      submit="Create"
      actions={
        fault === undefined && passwordFault === undefined ? [createUser(name, password)] : []
      }
      onClose={onClose}
      onDone={([outcome]) => setMade(outcome?.answer as Schemas["NewUser"])}
      staysOpen
    >
      <TextField
        label="Name"
        value={name}
        onChange={setName}
        fault={name === "" ? undefined : fault}
      />
      <TextField
        label="Password"
        type="password"
        autoComplete="new-password"
        hint="12 characters or more; the user changes it."
        value={password}
        onChange={setPassword}
        fault={password === "" ? undefined : passwordFault}
      />
      <p className="soft">A user has no role until you give one.</p>
    </ActionDialog>
  );
}
