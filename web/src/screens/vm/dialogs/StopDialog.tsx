import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { power } from "../../../actions/power";
import { limitsOf, numberFault } from "../../../api/limits";
import { RadioField, TextField } from "../../../ui/Field";
import { named } from "./naming";

interface Props {
  vms: readonly { name: string }[];
  verb: "stop" | "restart";
  onClose: () => void;
}

const DEFAULT_S = "60";

export function StopDialog({ vms, verb, onClose }: Props) {
  const [how, setHow] = useState("ask");
  const [timeout, setTimeout] = useState(DEFAULT_S);
  const isForced = how === "force";
  const seconds = Number(timeout);
  const fault = isForced ? undefined : numberFault(limitsOf("StopVm", "timeout_s"), seconds);
  const stopping = {
    force: isForced,
    timeoutS: isForced || timeout === DEFAULT_S ? undefined : seconds,
  };
  const word = verb === "stop" ? "Stop" : "Restart";
  return (
    <ActionDialog
      title={`${word} ${named(vms)}`}
      submit={word}
      actions={fault === undefined ? vms.map((vm) => power[verb](vm, stopping)) : []}
      onClose={onClose}
      {...(isForced
        ? {
            loses:
              "What a guest has not written to its disks yet, as when a machine loses its power.",
          }
        : {})}
    >
      <RadioField
        label="How"
        value={how}
        onChange={setHow}
        options={[
          {
            value: "ask",
            label: "Ask the guest to shut down",
            hint: "It is powered off if it does not within the time.",
          },
          { value: "force", label: "Power off at once" },
        ]}
      />
      {isForced ? null : (
        <TextField
          label="Time to shut down, in seconds"
          inputMode="numeric"
          value={timeout}
          onChange={setTimeout}
          fault={fault}
        />
      )}
    </ActionDialog>
  );
}
