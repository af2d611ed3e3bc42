import { useState } from "react";
import { ActionDialog } from "../../actions/ActionDialog";
import { granteeName, grantRole, type Grantee } from "../../actions/access";
import { useAsk } from "../../api/ask";
import { TextField } from "../../ui/Field";
import { RoleField } from "./RoleField";
import { ScopeField } from "./ScopeField";
import { scopeOf, wholeSite } from "./scope";
import { PERMITS } from "./privileges";

interface Props {
  /** The user that gets a role, or the provider one of whose groups does. */
  user?: string;
  provider?: string;
  onClose: () => void;
}

/** Gives a role to somebody. */
export function GrantDialog({ user, provider, onClose }: Props) {
  const [group, setGroup] = useState("");
  const grantee: Grantee =
    provider === undefined
      ? { kind: "user", user: user ?? "" }
      : { kind: "group", provider, group };
  const roles = useAsk("role_list", { query: { limit: 1000 } });
  const [role, setRole] = useState("");
  const [draft, setDraft] = useState(wholeSite);
  const scope = scopeOf(draft);
  const chosen = roles.data?.items.find(({ name }) => name === role);
  return (
    <ActionDialog
      title={
        provider === undefined
          ? `Give ${granteeName(grantee)} a role`
          : `Give a group of ${provider} a role`
      }
      submit="Give"
      size="wide"
      actions={
        role !== "" && (provider === undefined || group !== "") && scope !== undefined
          ? [grantRole(grantee, role, scope)]
          : []
      }
      onClose={onClose}
    >
      {provider === undefined ? null : (
        <TextField
          label="Group"
          hint="As the provider spells it, byte by byte."
          value={group}
          onChange={setGroup}
        />
      )}
      <RoleField value={role} onChange={setRole} />
      <ScopeField scope={draft} onChange={setDraft} />
      {chosen === undefined ? null : (
        <details className="what">
          <summary>What {role} permits</summary>
          <ul className="bullets">
            {chosen.privileges.map((privilege) => (
              <li key={privilege}>
                <code>{privilege}</code> {PERMITS[privilege]}
              </li>
            ))}
          </ul>
        </details>
      )}
      <p className="soft">You can give only privileges that you have at the same place.</p>
    </ActionDialog>
  );
}
