import type { Schemas } from "../api/types";
import { action, type Action } from "./action";

type Named = Pick<Schemas["Host"], "name">;
const of = ({ name }: Named) => ({ path: { host: name } });

export interface Joining {
  name: string;
  address: string;
  validS: number;
}

export function makeHostToken({ name, address, validS }: Joining): Action {
  return action(
    `Let ${name} join`,
    "host_token",
    { body: { name, address, valid_seconds: validS } },
    ["host", "token", name, "--address", address, "--valid", String(validS)],
  );
}

export function setMaintenance(host: Named, isOn: boolean): Action {
  return action(
    isOn ? `Set ${host.name} in maintenance` : `End the maintenance of ${host.name}`,
    "host_set",
    { ...of(host), body: { maintenance: isOn } },
    ["host", "maintenance", host.name, isOn ? "on" : "off"],
  );
}

export interface Evacuating {
  shutDown: boolean;
  timeoutS: number | undefined;
  withVolumes: boolean;
  bandwidth: number | undefined;
}

export function evacuate(host: Named, wish: Evacuating): Action {
  const { shutDown, timeoutS, withVolumes, bandwidth } = wish;
  return action(
    `Evacuate ${host.name}`,
    "host_evacuate",
    {
      ...of(host),
      body: {
        ...(shutDown ? { shut_down: true } : {}),
        ...(timeoutS === undefined ? {} : { timeout_s: timeoutS }),
        ...(withVolumes ? { with_volumes: true } : {}),
        ...(bandwidth === undefined ? {} : { bytes_per_second: bandwidth }),
      },
    },
    [
      ...["host", "evacuate", host.name],
      shutDown && "--shut-down",
      ...(timeoutS === undefined ? [] : ["--timeout", String(timeoutS)]),
      withVolumes && "--with-volumes",
      ...(bandwidth === undefined ? [] : ["--bandwidth", String(bandwidth)]),
    ],
  );
}

export function fence(host: Named, evenIfItAnswers: boolean): Action {
  return action(
    `Declare ${host.name} lost`,
    "host_fence",
    {
      ...of(host),
      body: {
        confirm: host.name,
        ...(evenIfItAnswers ? { even_if_it_answers: true } : {}),
      },
    },
    [
      ...["host", "fence", host.name, "--confirm", host.name],
      evenIfItAnswers && "--even-if-it-answers",
    ],
  );
}

export function admit(host: Named, hasStartedAgain: boolean): Action {
  return action(
    `Admit ${host.name}`,
    "host_admit",
    { ...of(host), body: hasStartedAgain ? { has_started_again: true } : {} },
    ["host", "admit", host.name, hasStartedAgain && "--has-started-again"],
  );
}

export function removeHost(host: Named): Action {
  return action(`Remove ${host.name}`, "host_remove", of(host), ["host", "remove", host.name]);
}

export function balanceHosts(plan: string, moves: number): Action {
  return action(
    `Balance the hosts by ${moves === 1 ? "one move" : `${moves} moves`}`,
    "hosts_balance",
    { body: { plan } },
    ["host", "balance", "--apply"],
  );
}
