import { useState } from "react";
import { openDumpLine } from "../../actions/dump";
import { useAsk } from "../../api/ask";
import type { Schemas, Vm } from "../../api/types";
import { bytes } from "../../lib/units";
import { Button } from "../../ui/Button";
import { CodeLine } from "../../ui/CodeLine";
import { Listed } from "../../ui/Listed";
import { Empty } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { Table } from "../../ui/Table";
import { When } from "../../ui/When";
import { CreateDumpDialog, DeleteDumpDialog } from "./dialogs/DumpDialogs";
import { useVmRefusal } from "./useVmRefusal";

type Dump = Schemas["Dump"];
type Asked = { what: "create" } | { what: "delete"; dump: Dump };

const MS = 1_000;

/** The memories of the guest that were kept, encrypted. */
export function DumpsTab({ vm }: { vm: Vm }) {
  const [asked, ask] = useState<Asked>();
  const dumps = useAsk("vm_dump_list", { path: { vm: vm.name }, query: { limit: 1000 } });
  const why = useVmRefusal(vm);
  const runs = vm.power === "running" || vm.power === "paused";
  const whyNot = why("vm_dump") ?? (runs ? undefined : "It has no memory while it is off.");
  const close = () => ask(undefined);
  return (
    <>
      <Panel
        title="Dumps of its memory"
        isFlush
        aside={
          <Button icon="plus" why={whyNot} onPress={() => ask({ what: "create" })}>
            Dump&hellip;
          </Button>
        }
      >
        <Listed
          asked={dumps}
          empty={
            <Empty icon="copy" title="It has no dump">
              A dump is a core file for gdb and crash, encrypted under the VM&rsquo;s key. It is
              made while the VM runs.
            </Empty>
          }
        >
          {(rows) => (
            <Table
              label="Dumps"
              rows={rows}
              keyOf={({ number }) => number}
              columns={[
                {
                  name: "Dump",
                  cell: ({ number, label }) =>
                    typeof label === "string" ? `${number}: ${label}` : String(number),
                },
                { name: "Made", cell: ({ at_unix_seconds: at }) => <When ms={at * MS} /> },
                { name: "Size", isNumber: true, cell: (dump) => bytes(dump.bytes) },
                {
                  name: "Takes",
                  isNumber: true,
                  isMinor: true,
                  cell: (dump) => bytes(dump.sealed_bytes),
                },
                {
                  name: "Actions",
                  isUnseen: true,
                  cell: (dump) => (
                    <span className="buttons">
                      <Button
                        look="quiet"
                        why={why("vm_dump_delete")}
                        aria-label={`Delete dump ${dump.number}`}
                        onPress={() => ask({ what: "delete", dump })}
                      >
                        Delete&hellip;
                      </Button>
                    </span>
                  ),
                },
              ]}
            />
          )}
        </Listed>
      </Panel>
      <Open vm={vm} newest={dumps.data?.items.at(-1)} />
      {asked?.what === "create" ? <CreateDumpDialog vm={vm} onClose={close} /> : null}
      {asked?.what === "delete" ? (
        <DeleteDumpDialog vm={vm} dump={asked.dump} onClose={close} />
      ) : null}
    </>
  );
}

/** A dump is read from the VM's host, which takes no browser for it. */
function Open({ vm, newest }: { vm: Vm; newest: Dump | undefined }) {
  if (newest === undefined) return null;
  return (
    <Panel title="To read one">
      <div className="stack">
        <p>
          The command writes a dump to a file in plain text, with the guest&rsquo;s keys and
          passwords in it. It is read from the VM&rsquo;s host, not through this page: a browser
          would keep it among its downloads. An event says who has opened which dump.
        </p>
        <CodeLine label="Command" text={openDumpLine(vm, newest.number)} />
      </div>
    </Panel>
  );
}
