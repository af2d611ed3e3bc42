import type { Schemas } from "../api/types";
import { action, type Action } from "./action";

type Named = Pick<Schemas["Network"], "name">;

export function createNetwork(name: string, vlan: number | undefined): Action {
  return action(
    `Create network ${name}`,
    "network_create",
    { body: { name, ...(vlan === undefined ? {} : { vlan }) } },
    ["network", "create", name, ...(vlan === undefined ? [] : ["--vlan", String(vlan)])],
  );
}

export function deleteNetwork({ name }: Named): Action {
  return action(`Delete network ${name}`, "network_delete", { path: { network: name } }, [
    ...["network", "delete", name],
  ]);
}

export function addNetworkHost({ name }: Named, host: string, bridge: string): Action {
  return action(
    `Connect ${host} to network ${name}`,
    "network_add_host",
    { path: { network: name }, body: { host, bridge } },
    ["network", "add-host", name, "--host", host, "--bridge", bridge],
  );
}

export function removeNetworkHost({ name }: Named, host: string): Action {
  return action(
    `Take network ${name} from ${host}`,
    "network_remove_host",
    { path: { network: name, host } },
    ["network", "remove-host", name, "--host", host],
  );
}
