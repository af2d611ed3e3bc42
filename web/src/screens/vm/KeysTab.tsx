import { useState } from "react";
import { useAsk } from "../../api/ask";
import type { Vm } from "../../api/types";
import { duration, moment } from "../../lib/units";
import { sentence } from "../../lib/words";
import { Button } from "../../ui/Button";
import { Empty, ProblemNote, Waiting } from "../../ui/Notes";
import { Facts, Panel } from "../../ui/Panel";
import { KeyMark } from "../../ui/Status";
import { Table } from "../../ui/Table";
import { When } from "../../ui/When";
import { CryptoperiodDialog } from "./dialogs/CryptoperiodDialog";
import { RotateDialog } from "./dialogs/RotateDialog";
import { useVmRefusal } from "./useVmRefusal";

const MS = 1_000;

export function KeysTab({ vm }: { vm: Vm }) {
  const refusal = useVmRefusal(vm);
  const [asked, ask] = useState<"rotate" | "period">();
  const status = useAsk("vm_key_status", { path: { vm: vm.name } });
  const why = refusal("vm_rotate_key");
  if (!vm.encrypted) {
    return (
      <Panel title="Keys">
        <Empty icon="key" title="It is not encrypted">
          Anyone who reads its datastore reads its disks. Encrypt each disk on the tab Disks; the
          first one gives the VM its key.
        </Empty>
      </Panel>
    );
  }
  const rotate = (
    <Button icon="key" why={why} onPress={() => ask("rotate")}>
      Rotate&hellip;
    </Button>
  );
  return (
    <>
      <Panel title="Keys at their providers" isFlush aside={rotate}>
        {status.error === null ? null : (
          <ProblemNote problem={status.error} retry={() => void status.refetch()} />
        )}
        {status.isPending ? <Waiting /> : null}
        {status.data === undefined ? null : (
          <Table
            label="Keys"
            rows={status.data.keys}
            keyOf={({ provider, key }) => `${provider} ${key}`}
            columns={[
              { name: "Key", cell: ({ key }) => <code>{key}</code> },
              { name: "Provider", cell: ({ provider }) => provider },
              { name: "State", cell: ({ state }) => <KeyMark state={state} /> },
              {
                name: "To be replaced",
                cell: ({ expires_unix_seconds }) =>
                  typeof expires_unix_seconds === "number" ? (
                    <When ms={expires_unix_seconds * MS} />
                  ) : (
                    "no date"
                  ),
              },
              {
                name: "Reason",
                cell: ({ reason }) => (typeof reason === "string" ? sentence(reason) : ""),
              },
            ]}
          />
        )}
      </Panel>
      <Panel
        title="Data keys"
        aside={
          <Button look="quiet" why={refusal("vm_cryptoperiod_set")} onPress={() => ask("period")}>
            Cryptoperiod&hellip;
          </Button>
        }
      >
        <Facts
          facts={[
            {
              label: "In use since",
              value:
                typeof vm.data_keys_unix_seconds === "number"
                  ? moment(vm.data_keys_unix_seconds * MS)
                  : "unknown",
            },
            {
              label: "Renewed",
              value:
                vm.cryptoperiod === undefined || vm.cryptoperiod === null
                  ? "on request only"
                  : `every ${duration(vm.cryptoperiod.period.every_s)}, next on ${moment(vm.cryptoperiod.next_unix_seconds * MS)}`,
            },
            typeof vm.cryptoperiod?.waits === "string"
              ? { label: "Waits", value: vm.cryptoperiod.waits }
              : undefined,
            vm.cryptoperiod?.failed === undefined || vm.cryptoperiod.failed === null
              ? undefined
              : { label: "Failed", value: vm.cryptoperiod.failed.reason },
            {
              label: "Holders",
              value:
                vm.power === "stopped"
                  ? "nobody while it is off: only its key provider has the key"
                  : `the host ${vm.host ?? ""}, in the memory of the processes that serve its disks`,
            },
          ]}
        />
      </Panel>
      {asked === "rotate" ? <RotateDialog vms={[vm]} onClose={() => ask(undefined)} /> : null}
      {asked === "period" ? (
        <CryptoperiodDialog
          vms={[vm]}
          present={vm.cryptoperiod?.period}
          onClose={() => ask(undefined)}
        />
      ) : null}
    </>
  );
}
