import { ActionDialog } from "../../../actions/ActionDialog";
import { power } from "../../../actions/power";
import { capital } from "../../../lib/words";
import { named } from "./naming";

interface Props {
  vms: readonly { name: string }[];
  verb: "start" | "resume";
  onClose: () => void;
}

/** Asks before many VMs are started at once. */
export function StartDialog({ vms, verb, onClose }: Props) {
  const word = capital(verb);
  return (
    <ActionDialog
      title={`${word} ${named(vms)}`}
      submit={`${word} all`}
      actions={vms.map((vm) => power[verb](vm))}
      onClose={onClose}
    >
      <p>
        Each one is a task of its own, some at a time. This dialog stays until all of them are
        accepted.
      </p>
    </ActionDialog>
  );
}
