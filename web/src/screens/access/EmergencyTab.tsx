import { useState } from "react";
import { ActionDialog } from "../../actions/ActionDialog";
import {
  acknowledgeEmergency,
  createEmergency,
  revokeEmergency,
  rotateEmergency,
} from "../../actions/access";
import { useAsk } from "../../api/ask";
import { limitsOf, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { moment, plural } from "../../lib/units";
import { Needs } from "../../session/Needs";
import { useMay } from "../../session/useMay";
import { TextField } from "../../ui/Field";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Menu } from "../../ui/Menu";
import { Empty, Note } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { ShownOnce } from "../../ui/ShownOnce";
import { Mark } from "../../ui/Status";
import { Table, type Column } from "../../ui/Table";
import { When } from "../../ui/When";

type Credential = Schemas["EmergencyCredential"];
type Asked =
  { kind: "create" } | { kind: "rotate" | "acknowledge" | "revoke"; credential: Credential };

const MS = 1_000;

export function EmergencyTab() {
  return (
    <Needs operation="emergency_list">
      <Credentials />
    </Needs>
  );
}

function isOpen({ last_use: use }: Credential): boolean {
  return use !== undefined && use !== null && typeof use.acknowledged_by !== "string";
}

function Credentials() {
  const asked = useAsk("emergency_list", { query: { limit: 1000 } }, { everyMs: 15_000 });
  const may = useMay();
  const [dialog, ask] = useState<Asked>();
  const [made, setMade] = useState<Schemas["NewEmergency"]>();
  const close = () => ask(undefined);
  const open = (asked.data?.items ?? []).filter(isOpen);
  const columns: readonly Column<Credential>[] = [
    { name: "Name", cell: ({ name }) => <strong>{name}</strong> },
    {
      name: "State",
      cell: (credential) =>
        isOpen(credential) ? (
          <Mark tone="bad" shape="triangle">
            Used, not acknowledged
          </Mark>
        ) : credential.usable ? (
          <Mark tone="good" shape="tick">
            Can be used once
          </Mark>
        ) : (
          <Mark tone="off" shape="ring">
            Spent
          </Mark>
        ),
    },
    {
      name: "Last use",
      cell: ({ last_use: use }) =>
        use === undefined || use === null
          ? "never"
          : `${moment(use.at_unix_seconds * MS)} from ${use.from}: ${use.reason}`,
    },
    { name: "Acknowledged by", cell: ({ last_use: use }) => use?.acknowledged_by ?? "" },
    {
      name: "Made",
      cell: ({ created_unix_seconds }) => <When ms={created_unix_seconds * MS} />,
    },
    {
      name: "Actions",
      isUnseen: true,
      cell: (credential) => (
        <Menu
          label={`Actions for ${credential.name}`}
          icon="more"
          look="quiet"
          choices={[
            may("emergency_acknowledge", {
              id: "acknowledge",
              label: "Acknowledge its use\u2026",
              ...(isOpen(credential) ? {} : { refusal: "There is no use to acknowledge." }),
              choose: () => ask({ kind: "acknowledge", credential }),
            }),
            may("emergency_rotate", {
              id: "rotate",
              label: "Rotate\u2026",
              hint: "Another secret, which can be used once",
              choose: () => ask({ kind: "rotate", credential }),
            }),
            may("emergency_revoke", {
              id: "revoke",
              label: "Revoke\u2026",
              isDangerous: true,
              ...(isOpen(credential) ? { refusal: "Its use has to be acknowledged first." } : {}),
              choose: () => ask({ kind: "revoke", credential }),
            }),
          ]}
        />
      ),
    },
  ];
  return (
    <>
      {open.map((credential) => (
        <Note key={credential.id} tone="bad" title={`${credential.name} was used`}>
          <p>
            The reason that was given: {credential.last_use?.reason}. Find out what was done (access
            log, by <code>emergency:{credential.name}</code>), and acknowledge it; the alarm is
            raised until then.
          </p>
        </Note>
      ))}
      <Panel
        title={asked.data === undefined ? "Credentials" : plural(asked.data.total, "credential")}
        isFlush
        aside={
          <MayButton
            operation="emergency_create"
            look="primary"
            icon="plus"
            onPress={() => ask({ kind: "create" })}
          >
            Create a credential&hellip;
          </MayButton>
        }
      >
        <Listed
          asked={asked}
          empty={
            <Empty icon="key" title="There is no way in for an emergency">
              A credential on paper, in a sealed envelope, lets somebody in once when the identity
              provider is away. Its use raises a critical alarm.
            </Empty>
          }
        >
          {(credentials) => (
            <Table
              label="Emergency credentials"
              columns={columns}
              rows={credentials}
              keyOf={({ id }) => id}
            />
          )}
        </Listed>
      </Panel>
      {dialog?.kind === "create" ? (
        <CreateDialog
          onClose={close}
          onMade={(answer) => setMade(answer as Schemas["NewEmergency"])}
        />
      ) : null}
      {dialog?.kind === "rotate" ? (
        <ActionDialog
          title={`Rotate ${dialog.credential.name}`}
          submit="Rotate"
          actions={[rotateEmergency(dialog.credential.name)]}
          onClose={close}
          onDone={([outcome]) => setMade(outcome?.answer as Schemas["NewEmergency"])}
        >
          <p>What is in its envelope counts no more. The new secret is shown once.</p>
        </ActionDialog>
      ) : null}
      {dialog?.kind === "acknowledge" ? (
        <ActionDialog
          title={`Acknowledge the use of ${dialog.credential.name}`}
          submit="Acknowledge"
          actions={[acknowledgeEmergency(dialog.credential.name)]}
          onClose={close}
        >
          <p>
            You say under your name that you know of it: {dialog.credential.last_use?.reason}. The
            alarm ends.
          </p>
        </ActionDialog>
      ) : null}
      {dialog?.kind === "revoke" ? (
        <ActionDialog
          title={`Revoke ${dialog.credential.name}`}
          submit="Revoke"
          actions={[revokeEmergency(dialog.credential.name)]}
          confirm={dialog.credential.name}
          onClose={close}
          loses={<p>This way in. What is in its envelope counts no more.</p>}
        />
      ) : null}
      {made === undefined ? null : (
        <ShownOnce
          title={`The credential ${made.info.name}`}
          label="Secret"
          secret={made.secret}
          onClose={() => setMade(undefined)}
        >
          <p>
            Write it on paper and seal the envelope. It gives a session of an hour with the role
            administrator, once.
          </p>
        </ShownOnce>
      )}
    </>
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
  const fault = textFault(limitsOf("CreateEmergency", "name"), name);
  return (
    <ActionDialog
      title="Create an emergency credential"
      submit="Create"
      actions={fault === undefined ? [createEmergency(name)] : []}
      onClose={onClose}
      onDone={([outcome]) => onMade(outcome?.answer)}
    >
      <TextField
        label="Name"
        hint="As on the envelope."
        value={name}
        onChange={setName}
        fault={name === "" ? undefined : fault}
      />
      <p className="soft">It takes every privilege to make one.</p>
    </ActionDialog>
  );
}
