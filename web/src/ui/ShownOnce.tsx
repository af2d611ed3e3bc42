import type { ReactNode } from "react";
import { useState } from "react";
import { saveAs } from "../lib/save";
import { Button } from "./Button";
import { CodeLine } from "./CodeLine";
import { Dialog } from "./Dialog";
import { CheckField } from "./Field";
import { Note } from "./Notes";

interface Props {
  title: string;
  /** What it is: Secret, Token. */
  label: string;
  secret: string;
  /** What it is called when it is saved as a file; it is not offered without a name. */
  file?: string;
  children?: ReactNode;
  onClose: () => void;
}

/** A secret that the server does not tell again. */
export function ShownOnce({ title, label, secret, file, children, onClose }: Props) {
  const [isKept, setKept] = useState(false);
  return (
    <Dialog title={title} onClose={onClose} size="wide" mustAnswer>
      <Note tone="warning" title="It is shown once">
        Neither this page nor the control plane can show it again. Anyone who has it can use it.
      </Note>
      <div className="secret">
        <CodeLine label={label} text={secret} />
      </div>
      {children}
      {file === undefined ? null : (
        <div>
          <Button icon="down" onPress={() => saveAs(file, secret)}>
            Save as {file}
          </Button>
        </div>
      )}
      <CheckField label="I have kept it" isChecked={isKept} onChange={setKept} />
      <div className="dialog-foot">
        <Button look="primary" isDisabled={!isKept} onPress={onClose}>
          Done
        </Button>
      </div>
    </Dialog>
  );
}
