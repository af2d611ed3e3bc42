import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { tag } from "../../../actions/vm";
import { LIMITS } from "../../../api/generated/limits";
import { textFault } from "../../../api/limits";
import { TextField } from "../../../ui/Field";
import { named } from "./naming";

const list = (text: string) => text.split(/[\s,]+/).filter((word) => word !== "");

export function TagDialog({
  vms,
  onClose,
}: {
  vms: readonly { name: string; tags?: string[] }[];
  onClose: () => void;
}) {
  const [add, setAdd] = useState("");
  const [remove, setRemove] = useState("");
  const [set, unset] = [list(add), list(remove)];
  const fault = set
    .map((one) => textFault(LIMITS.Tag[""], one))
    .find((found) => found !== undefined);
  const isValid = fault === undefined && set.length + unset.length > 0;
  return (
    <ActionDialog
      title={`Tags of ${named(vms)}`}
      submit="Set"
      actions={isValid ? vms.map((vm) => tag(vm, { set, remove: unset })) : []}
      onClose={onClose}
    >
      <TextField
        label="Set"
        hint="KEY or KEY=VALUE, separated by spaces; a tag with the same key is replaced."
        value={add}
        onChange={setAdd}
        fault={fault}
        isCode
      />
      <TextField
        label="Remove"
        hint="Keys, separated by spaces."
        value={remove}
        onChange={setRemove}
        isCode
        isOptional
      />
    </ActionDialog>
  );
}
