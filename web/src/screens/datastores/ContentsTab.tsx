import { useState } from "react";
import { useSearchParams } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { rebuild } from "../../actions/datastore";
import { registerVm } from "../../actions/vm";
import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { count } from "../../lib/units";
import { sentence } from "../../lib/words";
import { useRefusal } from "../../session/useMe";
import { Button } from "../../ui/Button";
import { CheckField, SelectField } from "../../ui/Field";
import { Listed } from "../../ui/Listed";
import { MayButton } from "../../ui/MayButton";
import { Empty, Note } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { Mark, type Tone } from "../../ui/Status";
import { Table, type Column } from "../../ui/Table";

type Found = Schemas["Found"];
type Standing = Schemas["Standing"];

interface Meaning {
  tone: Tone;
  shape: "tick" | "question" | "cross" | "triangle";
  word: string;
  next: string;
}

const STANDINGS: Readonly<Record<Standing, Meaning>> = {
  registered: { tone: "good", shape: "tick", word: "Registered", next: "" },
  orphan: {
    tone: "warning",
    shape: "question",
    word: "Orphan",
    next: "A VM that the inventory does not know: register it.",
  },
  duplicate: {
    tone: "warning",
    shape: "triangle",
    word: "Copy",
    next: "A copy of a VM that the inventory has: move it away.",
  },
  broken: {
    tone: "bad",
    shape: "cross",
    word: "Broken",
    next: "Its configuration cannot be read.",
  },
  missing: {
    tone: "bad",
    shape: "cross",
    word: "Missing",
    next: "The inventory has a VM here whose directory is gone.",
  },
};

/** What is on a datastore, compared with the inventory. */
export function ContentsTab({ store }: { store: Schemas["Datastore"] }) {
  const refusal = useRefusal()("datastore_scan");
  const asked = useAsk(
    "datastore_scan",
    { path: { datastore: store.name }, query: { limit: 1000 } },
    { enabled: refusal === undefined },
  );
  const [query, setQuery] = useSearchParams();
  const [isRebuilding, begin] = useState(false);
  const [registering, register] = useState<string>();
  const wanted = query.get("standing") ?? "";
  if (refusal !== undefined) return <Note title="This takes another right">{refusal}</Note>;
  const orphans = asked.data?.items.filter(({ standing }) => standing === "orphan").length ?? 0;
  return (
    <>
      {orphans === 0 ? null : (
        <Note tone="warning" title={`${count(orphans)} here that the inventory does not know`}>
          <p>
            After the loss of the inventory, registering brings the VMs of a datastore back. A VM
            that runs elsewhere under another inventory must not be registered.
          </p>
        </Note>
      )}
      <Panel
        title="On the datastore"
        isFlush
        aside={
          <div className="buttons">
            <SelectField
              label="Show"
              value={wanted}
              options={[
                { value: "", label: "All" },
                ...Object.entries(STANDINGS).map(([value, { word }]) => ({ value, label: word })),
              ]}
              onChange={(standing) =>
                setQuery(standing === "" ? {} : { standing }, { replace: true })
              }
            />
            <Button
              icon="restart"
              isPending={asked.isFetching}
              onPress={() => void asked.refetch()}
            >
              Scan again
            </Button>
            <MayButton operation="datastore_rebuild" onPress={() => begin(true)}>
              Register all&hellip;
            </MayButton>
          </div>
        }
      >
        <Listed
          asked={asked}
          empty={
            <Empty icon="datastore" title="It is empty">
              Each VM has a directory here with its configuration and its sealed disks.
            </Empty>
          }
        >
          {(found) => (
            <Table
              label="Contents"
              columns={[...COLUMNS, actionsOf(register)]}
              rows={found.filter(({ standing }) => wanted === "" || standing === wanted)}
              keyOf={({ directory }) => directory}
            />
          )}
        </Listed>
      </Panel>
      {isRebuilding ? (
        <RebuildDialog store={store} orphans={orphans} onClose={() => begin(false)} />
      ) : null}
      {registering === undefined ? null : (
        <RegisterDialog store={store} directory={registering} onClose={() => register(undefined)} />
      )}
    </>
  );
}

const COLUMNS: readonly Column<Found>[] = [
  { name: "Directory", cell: ({ directory }) => <code>{directory}</code> },
  {
    name: "Standing",
    cell: ({ standing }) => {
      const { tone, shape, word } = STANDINGS[standing];
      return (
        <Mark tone={tone} shape={shape}>
          {word}
        </Mark>
      );
    },
  },
  { name: "VM", cell: ({ vm }) => (typeof vm === "string" ? <code>{vm}</code> : "not readable") },
  {
    name: "What it means",
    cell: ({ standing, reason }) =>
      [typeof reason === "string" ? `${sentence(reason)}.` : "", STANDINGS[standing].next]
        .join(" ")
        .trim(),
  },
];

/** What is not registered can be. */
function actionsOf(register: (directory: string) => void): Column<Found> {
  return {
    name: "Actions",
    isUnseen: true,
    cell: ({ standing, directory }) =>
      standing === "orphan" ? (
        <MayButton operation="vm_register" look="quiet" onPress={() => register(directory)}>
          Register {directory}&hellip;
        </MayButton>
      ) : null,
  };
}

function RegisterDialog({
  store,
  directory,
  onClose,
}: {
  store: Schemas["Datastore"];
  directory: string;
  onClose: () => void;
}) {
  const [accepts, setAccepts] = useState(false);
  return (
    <ActionDialog
      title={`Register ${directory}`}
      submit="Register"
      actions={[registerVm(directory, store.name, accepts)]}
      onClose={onClose}
    >
      <p>
        The VM in this directory of {store.name} gets into the inventory, if its keys vouch for its
        configuration. It must not run anywhere else.
      </p>
      <CheckField
        label="Accept a configuration that nothing vouches for"
        hint="Whoever wrote to the datastore decides then what the guest boots and which devices it has. Without it, the refusal lists them."
        isChecked={accepts}
        onChange={setAccepts}
      />
    </ActionDialog>
  );
}

function RebuildDialog({
  store,
  orphans,
  onClose,
}: {
  store: Schemas["Datastore"];
  orphans: number;
  onClose: () => void;
}) {
  const [accepts, setAccepts] = useState(false);
  return (
    <ActionDialog
      title={`Register the VMs of ${store.name}`}
      submit="Register"
      actions={[rebuild(store, accepts)]}
      onClose={onClose}
    >
      <p>
        {orphans === 0
          ? "The last scan found nothing to register."
          : `${count(orphans)} VMs are registered, if their keys and configurations allow it.`}{" "}
        The task says what became of each.
      </p>
      <CheckField
        label="Accept configurations that nothing vouches for"
        hint="Anyone who wrote to the datastore decides then what a guest boots and which devices it has. Otherwise such VMs are left out, and events give the reasons."
        isChecked={accepts}
        onChange={setAccepts}
      />
    </ActionDialog>
  );
}
