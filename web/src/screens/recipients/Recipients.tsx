import { useState } from "react";
import { ActionDialog } from "../../actions/ActionDialog";
import { addMail, addWebhook, removeRecipient, testRecipient } from "../../actions/site";
import { useRun } from "../../actions/run";
import { useAsk } from "../../api/ask";
import { limitsOf, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { count, plural } from "../../lib/units";
import { optional } from "../../lib/words";
import { Needs } from "../../session/Needs";
import { useMay } from "../../session/useMay";
import { useTitle } from "../../shell/useTitle";
import { CodeLine } from "../../ui/CodeLine";
import { RadioField, TextField } from "../../ui/Field";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Menu } from "../../ui/Menu";
import { Empty } from "../../ui/Notes";
import { Panel, ScreenHead } from "../../ui/Panel";
import { ShownOnce } from "../../ui/ShownOnce";
import { Mark, SeverityMark } from "../../ui/Status";
import { Table, type Column } from "../../ui/Table";
import { When } from "../../ui/When";

type Recipient = Schemas["Recipient"];

export default function Recipients() {
  useTitle("Recipients of alarms");
  const [isAdding, add] = useState(false);
  return (
    <>
      <ScreenHead
        title="Recipients of alarms"
        actions={
          <MayButton
            operation="recipient_create"
            look="primary"
            icon="plus"
            onPress={() => add(true)}
          >
            Add a recipient&hellip;
          </MayButton>
        }
      />
      <Needs operation="recipient_list">
        <Found />
      </Needs>
      <Panel title="On the control plane&rsquo;s machine">
        <div className="stack">
          <p>
            Mail goes through a relay that is set up there, so that nobody sends mail elsewhere
            through the API.
          </p>
          <CodeLine
            label="Relay"
            text="strongroom recipient relay --set smtps://mail.example.com --from strongroom@example.com"
          />
        </div>
      </Panel>
      {isAdding ? <AddDialog onClose={() => add(false)} /> : null}
    </>
  );
}

function Found() {
  const asked = useAsk("recipient_list", { query: { limit: 1000 } }, { everyMs: 10_000 });
  const may = useMay();
  const run = useRun();
  const [removing, remove] = useState<string>();
  const columns: readonly Column<Recipient>[] = [
    { name: "Name", cell: ({ name }) => <strong>{name}</strong> },
    { name: "Reached by", cell: ({ means, address }) => `${means}, ${address}` },
    {
      name: "Gets",
      cell: ({ severity }) =>
        severity === "critical" ? <SeverityMark severity="critical" /> : "all alarms",
    },
    {
      name: "State",
      cell: ({ failing }) =>
        failing === undefined || failing === null ? (
          <Mark tone="good" shape="tick">
            Nothing fails
          </Mark>
        ) : (
          <>
            <Mark tone="bad" shape="cross">
              Does not arrive
            </Mark>
            <br />
            <span className="small">
              {failing.reason}, since <When ms={failing.since_unix_ms} />
            </span>
          </>
        ),
    },
    {
      name: "Last taken",
      cell: ({ delivered_unix_ms: taken }) =>
        typeof taken === "number" ? <When ms={taken} /> : "nothing yet",
    },
    { name: "Waits", isNumber: true, cell: ({ waiting }) => count(waiting) },
    {
      name: "Actions",
      isUnseen: true,
      cell: ({ name }) => (
        <Menu
          label={`Actions for ${name}`}
          icon="more"
          look="quiet"
          choices={[
            may("recipient_test", {
              id: "test",
              label: "Send a test message",
              choose: () => void run([testRecipient(name)]),
            }),
            may("recipient_delete", {
              id: "remove",
              label: "Remove\u2026",
              isDangerous: true,
              choose: () => remove(name),
            }),
          ]}
        />
      ),
    },
  ];
  return (
    <Panel
      title={asked.data === undefined ? "Recipients" : plural(asked.data.total, "recipient")}
      isFlush
    >
      <Listed
        asked={asked}
        empty={
          <Empty icon="alarm" title="Nobody is sent alarms">
            Alarms are on this page only. A webhook or a mail address gets each alarm when it is
            raised, and again when it is over.
          </Empty>
        }
      >
        {(recipients) => (
          <Table label="Recipients" columns={columns} rows={recipients} keyOf={({ id }) => id} />
        )}
      </Listed>
      {removing === undefined ? null : (
        <ActionDialog
          title={`Remove ${removing}`}
          submit="Remove"
          actions={[removeRecipient(removing)]}
          confirm={removing}
          onClose={() => remove(undefined)}
          loses={<p>It gets no alarms any more. One that is made anew has another secret.</p>}
        />
      )}
    </Panel>
  );
}

function AddDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [kind, setKind] = useState("webhook");
  const [severity, setSeverity] = useState<Schemas["Severity"]>("warning");
  const [url, setUrl] = useState("");
  const [mail, setMail] = useState("");
  const [pem, setPem] = useState("");
  const [made, setMade] = useState<Schemas["NewRecipient"]>();
  const fault = textFault(limitsOf("CreateRecipient", "name"), name);
  const urlFault = textFault(limitsOf("WebhookUrl", ""), url);
  const mailFault = textFault(limitsOf("MailAddress", ""), mail);
  const actions = () => {
    if (fault !== undefined) return [];
    if (kind === "mail") return mailFault === undefined ? [addMail(name, mail, severity)] : [];
    return urlFault === undefined ? [addWebhook(name, url, severity, optional(pem))] : [];
  };
  if (typeof made?.secret === "string") {
    return (
      <ShownOnce
        title={`The secret of ${made.recipient.name}`}
        label="Secret"
        secret={made.secret}
        onClose={onClose}
      >
        <p>
          The receiver verifies each message with it, as Standard Webhooks has it: the header{" "}
          <code>webhook-signature</code>.
        </p>
      </ShownOnce>
    );
  }
  return (
    <ActionDialog
      title="Add a recipient"
      submit="Add"
      actions={actions()}
      onClose={onClose}
      onDone={([outcome]) => {
        const answer = outcome?.answer as Schemas["NewRecipient"];
        if (typeof answer.secret === "string") setMade(answer);
        else onClose();
      }}
      staysOpen
    >
      <TextField
        label="Name"
        value={name}
        onChange={setName}
        fault={name === "" ? undefined : fault}
      />
      <RadioField
        label="Reached by"
        value={kind}
        onChange={setKind}
        options={[
          { value: "webhook", label: "Webhook" },
          { value: "mail", label: "Mail" },
        ]}
      />
      {kind === "webhook" ? (
        <>
          <TextField
            label="Address"
            type="password"
            hint="It begins with https://. A part of it may be a secret: it is not shown again."
            value={url}
            onChange={setUrl}
            fault={
              url === "" || urlFault === undefined ? undefined : "An address as https://HOST/PATH."
            }
          />
          <TextField
            label="Certificates of its authorities"
            hint="As PEM; those of the control plane&rsquo;s machine if empty."
            value={pem}
            onChange={setPem}
            isLong
            isCode
            isOptional
          />
        </>
      ) : (
        <TextField
          label="Mail address"
          placeholder="oncall@example.com"
          value={mail}
          onChange={setMail}
          fault={mail === "" || mailFault === undefined ? undefined : "A mail address."}
        />
      )}
      <RadioField
        label="Gets"
        value={severity}
        onChange={(value) => setSeverity(value === "critical" ? "critical" : "warning")}
        options={[
          { value: "warning", label: "All alarms" },
          { value: "critical", label: "Critical ones only" },
        ]}
      />
    </ActionDialog>
  );
}
