import { useRef, useState, type SyntheticEvent, type ReactNode } from "react";
import { Button } from "../ui/Button";
import { Dialog } from "../ui/Dialog";
import { TextField } from "../ui/Field";
import { Note, ProblemNote } from "../ui/Notes";
import type { Action } from "./action";
import { report, sendAll, type Outcome } from "./run";
import { WhatThisDoes } from "./WhatThisDoes";

interface Props {
  title: string;
  submit: string;
  /** What the form amounts to; empty while something is wrong with it. */
  actions: readonly Action[];
  onClose: () => void;
  onDone?: (outcomes: readonly Outcome[]) => void;
  children?: ReactNode;
  /** What is lost; a destructive action says so. */
  loses?: ReactNode;
  /** The name to type before something is destroyed. */
  confirm?: string;
  size?: "narrow" | "wide";
}

/** A form whose result are actions; it shows the commands that do the same. */
export function ActionDialog({
  title,
  submit,
  actions,
  onClose,
  onDone,
  children,
  loses,
  confirm,
  size = "narrow",
}: Props) {
  const [typed, setTyped] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [failed, setFailed] = useState<readonly Outcome[]>([]);
  const keys = useRef(new Map<string, string>());
  const isConfirmed = confirm === undefined || typed === confirm;

  // The same request has the same key however often it is sent, so that it is done once.
  const keyOf = ({ operation, request }: Action) => {
    const name = JSON.stringify([operation, request]);
    const key = keys.current.get(name) ?? crypto.randomUUID();
    keys.current.set(name, key);
    return key;
  };
  const submitted = async (event: SyntheticEvent) => {
    event.preventDefault();
    if (isBusy || !isConfirmed || actions.length === 0) return;
    setBusy(true);
    const outcomes = await sendAll(actions, keyOf);
    setBusy(false);
    const done = outcomes.filter(({ problem }) => problem === undefined);
    done.slice(0, 3).forEach(report);
    const refused = outcomes.filter(({ problem }) => problem !== undefined);
    setFailed(refused);
    if (done.length > 0) onDone?.(done);
    if (refused.length === 0) onClose();
  };

  return (
    <Dialog title={title} onClose={onClose} size={size}>
      <form className="form" onSubmit={(event) => void submitted(event)}>
        {loses === undefined ? null : (
          <Note tone="bad" title="What is lost">
            {loses}
          </Note>
        )}
        {children}
        {confirm === undefined ? null : (
          <TextField
            label={`Type ${confirm} to confirm`}
            value={typed}
            onChange={setTyped}
            isCode
          />
        )}
        {failed.map(({ action, problem }) =>
          problem === undefined ? null : (
            <div key={action.label}>
              {actions.length > 1 ? <p className="small soft">{action.label}</p> : null}
              <ProblemNote problem={problem} />
            </div>
          ),
        )}
        <WhatThisDoes actions={actions} />
        <div className="dialog-foot">
          <Button onPress={onClose}>Cancel</Button>
          <Button
            type="submit"
            look={loses === undefined ? "primary" : "danger"}
            isBusy={isBusy}
            isDisabled={!isConfirmed || actions.length === 0}
          >
            {submit}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
