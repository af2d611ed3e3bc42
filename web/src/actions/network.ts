import type { Schemas } from "../api/types";
import { action, type Action } from "./action";

/** The network of a card that the user gets without rights on the host. */
export const USER_NETWORK = "user";

export function backendOf(network: string): Schemas["NicBackend"] {
  return network === USER_NETWORK ? { type: "user" } : { type: "network", network };
}

export function addNic(vm: string, network: string): Action {
  return action(
    `Add a network card to ${vm}`,
    "vm_add_nic",
    { path: { vm }, body: { nic: { backend: backendOf(network) } } },
    ["vm", "nic", "add", vm, "--net", network],
  );
}

export function connectNic(vm: string, nic: string, network: string): Action {
  return action(
    `Connect ${nic} of ${vm} to ${network}`,
    "vm_set_nic",
    { path: { vm, nic }, body: { backend: backendOf(network) } },
    ["vm", "nic", "set", vm, nic, "--net", network],
  );
}

export function linkNic(vm: string, nic: string, link: Schemas["Link"]): Action {
  return action(
    link === "up" ? `Plug in the cable of ${nic} of ${vm}` : `Pull the cable of ${nic} of ${vm}`,
    "vm_set_nic",
    { path: { vm, nic }, body: { link } },
    ["vm", "nic", "set", vm, nic, "--link", link],
  );
}

export function removeNic(vm: string, nic: string): Action {
  return action(`Remove ${nic} of ${vm}`, "vm_remove_nic", { path: { vm, nic } }, [
    "vm",
    "nic",
    "remove",
    vm,
    nic,
  ]);
}
