import { useState } from "react";
import { ActionDialog } from "../../../actions/ActionDialog";
import { addNic, connectNic, removeNic, USER_NETWORK } from "../../../actions/network";
import { useAsk } from "../../../api/ask";
import type { Vm } from "../../../api/types";
import { SelectField } from "../../../ui/Field";

function NetworkField({ value, onChange }: { value: string; onChange: (network: string) => void }) {
  const networks = useAsk("network_list", { query: { limit: 1000 } });
  const named = (networks.data?.items ?? []).map(({ name, vlan }) => ({
    value: name,
    label: typeof vlan === "number" ? `${name}, VLAN ${vlan}` : name,
  }));
  return (
    <SelectField
      label="Network"
      value={value}
      onChange={onChange}
      options={[
        { value: USER_NETWORK, label: "User network, without rights on the host" },
        ...named,
      ]}
    />
  );
}

export function AddNicDialog({ vm, onClose }: { vm: Vm; onClose: () => void }) {
  const [network, setNetwork] = useState(USER_NETWORK);
  return (
    <ActionDialog
      title={`Add a network card to ${vm.name}`}
      submit="Add"
      actions={[addNic(vm.name, network)]}
      onClose={onClose}
    >
      <NetworkField value={network} onChange={setNetwork} />
      <p className="field-hint">A guest that runs sees it at once.</p>
    </ActionDialog>
  );
}

interface OfNic {
  vm: Vm;
  nic: string;
  onClose: () => void;
}

export function ConnectNicDialog({ vm, nic, onClose }: OfNic) {
  const [network, setNetwork] = useState(USER_NETWORK);
  return (
    <ActionDialog
      title={`Connect ${nic} of ${vm.name}`}
      submit="Connect"
      actions={[connectNic(vm.name, nic, network)]}
      onClose={onClose}
    >
      <NetworkField value={network} onChange={setNetwork} />
      <p className="field-hint">A guest that runs sees the card go and come back.</p>
    </ActionDialog>
  );
}

export function RemoveNicDialog({ vm, nic, onClose }: OfNic) {
  return (
    <ActionDialog
      title={`Remove ${nic} of ${vm.name}`}
      submit="Remove"
      actions={[removeNic(vm.name, nic)]}
      onClose={onClose}
      loses="The card with its address. The numbers of those behind it fall by one."
    />
  );
}
