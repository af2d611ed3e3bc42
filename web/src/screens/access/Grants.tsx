import { useState } from "react";
import { ActionDialog } from "../../actions/ActionDialog";
import { holderOf, revokeGrant } from "../../actions/access";
import type { Schemas } from "../../api/types";
import { Button } from "../../ui/Button";
import { Table, type Column } from "../../ui/Table";
import { When } from "../../ui/When";
import { scopeInWords } from "./privileges";

type Grant = Schemas["Grant"];

const MS = 1_000;

/** Roles that somebody has, each with its end. */
export function Grants({
  grants,
  withHolders = false,
}: {
  grants: readonly Grant[];
  withHolders?: boolean;
}) {
  const [leaving, leave] = useState<Grant>();
  const holder: Column<Grant> = { name: "Who", cell: (grant) => holderOf(grant) };
  const columns: readonly Column<Grant>[] = [
    ...(withHolders ? [holder] : []),
    { name: "Role", cell: ({ role }) => role },
    { name: "Where", cell: ({ scope }) => scopeInWords(scope) },
    {
      name: "Given",
      cell: ({ by, created_unix_seconds }) => (
        <>
          by {by}, <When ms={created_unix_seconds * MS} />
        </>
      ),
    },
    {
      name: "Actions",
      isUnseen: true,
      cell: (grant) => (
        <Button
          look="quiet"
          onPress={() => leave(grant)}
          aria-label={`Take away ${grant.role} for ${scopeInWords(grant.scope)}`}
        >
          Take away&hellip;
        </Button>
      ),
    },
  ];
  return (
    <>
      <Table label="Roles" columns={columns} rows={grants} keyOf={({ id }) => id} />
      {leaving === undefined ? null : (
        <ActionDialog
          title={`Take ${leaving.role} from ${holderOf(leaving)}`}
          submit="Take away"
          actions={[revokeGrant(leaving)]}
          onClose={() => leave(undefined)}
        >
          <p>
            It counts no more for {scopeInWords(leaving.scope)}, at once. Tasks of{" "}
            {holderOf(leaving)} that have not begun at a host are cancelled.
          </p>
        </ActionDialog>
      )}
    </>
  );
}
