import { useState } from "react";
import { ActionDialog } from "../../actions/ActionDialog";
import { createRole, deleteRole } from "../../actions/access";
import { useAsk } from "../../api/ask";
import { limitsOf, textFault } from "../../api/limits";
import type { Privilege, Schemas } from "../../api/types";
import { plural } from "../../lib/units";
import { useMay } from "../../session/useMay";
import { CheckField, TextField } from "../../ui/Field";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Menu } from "../../ui/Menu";
import { Empty } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { PERMITS, PRIVILEGES } from "./privileges";

type Role = Schemas["Role"];

const PLAIN_ADMINISTRATOR = "no-cryptography-administrator";

/** The privileges that lead to keys and content: the built-in administrator without them tells. */
function cryptographic(roles: readonly Role[]): ReadonlySet<Privilege> {
  const plain = roles.find(({ name }) => name === PLAIN_ADMINISTRATOR)?.privileges;
  return new Set(plain === undefined ? [] : PRIVILEGES.filter((each) => !plain.includes(each)));
}

export function RolesTab() {
  const asked = useAsk("role_list", { query: { limit: 1000 } });
  const [isCreating, create] = useState(false);
  const secret = cryptographic(asked.data?.items ?? []);
  return (
    <>
      <div className="buttons">
        <MayButton operation="role_create" look="primary" icon="plus" onPress={() => create(true)}>
          Create a role&hellip;
        </MayButton>
        <span className="soft">
          A role does not change: it is deleted when nobody has it, and another one is made.
        </span>
      </div>
      <Listed asked={asked} empty={<Empty icon="people" title="There is no role" />} lines={8}>
        {(roles) => (
          <div className="halves">
            {roles.map((role) => (
              <RolePanel key={role.name} role={role} secret={secret} />
            ))}
          </div>
        )}
      </Listed>
      {isCreating ? <CreateDialog secret={secret} onClose={() => create(false)} /> : null}
    </>
  );
}

function RolePanel({ role, secret }: { role: Role; secret: ReadonlySet<Privilege> }) {
  const may = useMay();
  const [isDeleting, begin] = useState(false);
  const { name, built_in, privileges } = role;
  return (
    <Panel
      title={name}
      aside={
        built_in ? (
          <span className="soft small">every site has it</span>
        ) : (
          <Menu
            label={`Actions for ${name}`}
            icon="more"
            look="quiet"
            choices={[
              may("role_delete", {
                id: "delete",
                label: "Delete\u2026",
                isDangerous: true,
                choose: () => begin(true),
              }),
            ]}
          />
        )
      }
    >
      <details className="what">
        <summary>{plural(privileges.length, "privilege")}</summary>
        <ul className="bullets">
          {privileges.map((privilege) => (
            <li key={privilege}>
              <code>{privilege}</code>
              {secret.has(privilege) ? <span className="tag"> cryptographic</span> : null}{" "}
              {PERMITS[privilege]}
            </li>
          ))}
        </ul>
      </details>
      {isDeleting ? (
        <ActionDialog
          title={`Delete role ${name}`}
          submit="Delete"
          actions={[deleteRole(name)]}
          confirm={name}
          onClose={() => begin(false)}
          loses={<p>The role. It is refused while somebody has it.</p>}
        />
      ) : null}
    </Panel>
  );
}

function CreateDialog({
  secret,
  onClose,
}: {
  secret: ReadonlySet<Privilege>;
  onClose: () => void;
}) {
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState<readonly Privilege[]>(["view"]);
  const fault = textFault(limitsOf("CreateRole", "name"), name);
  const toggle = (privilege: Privilege, isIn: boolean) =>
    setChosen(PRIVILEGES.filter((each) => (each === privilege ? isIn : chosen.includes(each))));
  return (
    <ActionDialog
      title="Create a role"
      submit="Create"
      size="wide"
      actions={fault === undefined && chosen.length > 0 ? [createRole(name, chosen)] : []}
      onClose={onClose}
    >
      <TextField
        label="Name"
        value={name}
        onChange={setName}
        fault={name === "" ? undefined : fault}
      />
      <fieldset className="choices">
        <legend className="field-label">{plural(chosen.length, "privilege")}</legend>
        {PRIVILEGES.map((privilege) => (
          <CheckField
            key={privilege}
            label={secret.has(privilege) ? `${privilege} (cryptographic)` : privilege}
            hint={PERMITS[privilege]}
            isChecked={chosen.includes(privilege)}
            onChange={(isIn) => toggle(privilege, isIn)}
          />
        ))}
      </fieldset>
    </ActionDialog>
  );
}
