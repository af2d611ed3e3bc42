import { useState } from "react";
import { linkNic } from "../../actions/network";
import { useRun } from "../../actions/run";
import { commandLine } from "../../actions/action";
import type { Schemas, Vm } from "../../api/types";
import { words } from "../../lib/words";
import { Button } from "../../ui/Button";
import { Menu } from "../../ui/Menu";
import { Panel } from "../../ui/Panel";
import { AddNicDialog, ConnectNicDialog, RemoveNicDialog } from "./dialogs/NicDialogs";
import { useVmRefusal } from "./useVmRefusal";

type Asked = { what: "add" } | { what: "connect" | "remove"; nic: string };

export function NetworkPanel({ vm }: { vm: Vm }) {
  const run = useRun();
  const [asked, ask] = useState<Asked>();
  const close = () => ask(undefined);
  const why = useVmRefusal(vm);
  return (
    <Panel
      title="Network"
      isFlush
      aside={
        <Button
          icon="plus"
          look="quiet"
          why={why("vm_add_nic")}
          onPress={() => ask({ what: "add" })}
        >
          Add a card&hellip;
        </Button>
      }
    >
      {vm.nics.length === 0 ? <p className="panel-line soft">It has no network card.</p> : null}
      <ul className="lines">
        {vm.nics.map(({ backend, mac, link }, index) => {
          const nic = `nic${index}`;
          const cable = linkNic(vm.name, nic, link === "down" ? "up" : "down");
          return (
            <li key={nic} className="line">
              <div className="line-words">
                <span>
                  <strong>{nic}</strong> {backendInWords(backend)}
                  {link === "down" ? ", without a cable" : ""}
                </span>
                {typeof mac === "string" ? <code className="soft">{mac}</code> : null}
              </div>
              <Menu
                label={`More for ${nic}`}
                icon="more"
                look="quiet"
                choices={[
                  {
                    id: "connect",
                    label: "Connect\u2026",
                    refusal: why("vm_set_nic"),
                    choose: () => ask({ what: "connect", nic }),
                  },
                  {
                    id: "cable",
                    label: link === "down" ? "Plug its cable in" : "Pull its cable",
                    hint: commandLine(cable),
                    refusal: why("vm_set_nic"),
                    choose: () => void run([cable]),
                  },
                  {
                    id: "remove",
                    label: "Remove\u2026",
                    isDangerous: true,
                    refusal: why("vm_remove_nic"),
                    choose: () => ask({ what: "remove", nic }),
                  },
                ]}
              />
            </li>
          );
        })}
      </ul>
      {asked?.what === "add" ? <AddNicDialog vm={vm} onClose={close} /> : null}
      {asked?.what === "connect" ? (
        <ConnectNicDialog vm={vm} nic={asked.nic} onClose={close} />
      ) : null}
      {asked?.what === "remove" ? (
        <RemoveNicDialog vm={vm} nic={asked.nic} onClose={close} />
      ) : null}
    </Panel>
  );
}

function backendInWords(backend: Schemas["NicBackend"]): string {
  switch (backend.type) {
    case "user":
      return "user network (passt)";
    case "network":
      return `network ${backend.network}`;
    case "bridge":
    case "tap":
      return `${words(backend.type)} ${backend.device}`;
  }
}
