import { useState } from "react";
import { ActionDialog } from "../../actions/ActionDialog";
import { makeHostToken } from "../../actions/host";
import { limitsOf, textFault } from "../../api/limits";
import type { Schemas } from "../../api/types";
import { moment } from "../../lib/units";
import { CodeLine } from "../../ui/CodeLine";
import { SelectField, TextField } from "../../ui/Field";
import { ShownOnce } from "../../ui/ShownOnce";
import { joinCommand } from "./join";

const VALID = [
  { value: "900", label: "15 minutes" },
  { value: "3600", label: "1 hour" },
  { value: "86400", label: "1 day" },
  { value: "604800", label: "7 days" },
];
const MS = 1_000;

/** Makes a token with which a machine joins, and says what to run there. */
export function JoinDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [address, setAddress] = useState("");
  const [valid, setValid] = useState("3600");
  const [token, setToken] = useState<Schemas["HostToken"]>();
  const fault = textFault(limitsOf("CreateHostToken", "name"), name);
  const addressFault = /:[0-9]+$/.test(address)
    ? textFault(limitsOf("CreateHostToken", "address"), address)
    : "An address with a port, as in 10.0.0.6:5691.";

  if (token !== undefined) {
    return (
      <ShownOnce
        title={`The token of ${token.name}`}
        label="Token"
        secret={JSON.stringify(token)}
        file={`${token.name}.token`}
        onClose={onClose}
      >
        <p>
          It can be used once, until {moment(token.expires_unix_seconds * MS)}. Bring it to the new
          machine as a file, install the same version of Strongroom there, and run:
        </p>
        <CodeLine label="There" text={joinCommand(token)} />
        <p className="soft">
          The fingerprint is that of the key server&rsquo;s authority: the machine refuses any
          other. Its clock must not be more than 30 s off.
        </p>
      </ShownOnce>
    );
  }
  return (
    <ActionDialog
      title="Let a host join"
      submit="Make its token"
      actions={
        fault === undefined && addressFault === undefined
          ? [makeHostToken({ name, address, validS: Number(valid) })]
          : []
      }
      onClose={onClose}
      onDone={([made]) => setToken(made?.answer as Schemas["HostToken"])}
      staysOpen
    >
      <p>
        A host runs VMs, and gets the keys of those that run on it. Anyone who owns the machine can
        read what its VMs have in memory.
      </p>
      <TextField
        label="Name"
        value={name}
        onChange={setName}
        fault={name === "" ? undefined : fault}
      />
      <TextField
        label="Address"
        hint="Where this control plane will reach it: address and port."
        value={address}
        placeholder="10.0.0.6:5691"
        onChange={setAddress}
        fault={address === "" ? undefined : addressFault}
        isCode
      />
      <SelectField label="Valid for" value={valid} options={VALID} onChange={setValid} />
    </ActionDialog>
  );
}
