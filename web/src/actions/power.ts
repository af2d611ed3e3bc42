import type { PowerState, VmSummary } from "../api/types";
import { action, type Action } from "./action";

type Named = Pick<VmSummary, "name">;
const of = ({ name }: Named) => ({ path: { vm: name } });

export interface Stopping {
  force: boolean;
  timeoutS: number | undefined;
}

function stopBody({ force, timeoutS }: Stopping) {
  return {
    ...(force ? { force } : {}),
    ...(timeoutS === undefined ? {} : { timeout_s: timeoutS }),
  };
}

function stopWords({ force, timeoutS }: Stopping): readonly (string | false)[] {
  return [force && "--force", ...(timeoutS === undefined ? [] : ["--timeout", String(timeoutS)])];
}

export const power = {
  start: (vm: Named, { discardMemory = false, paused = false } = {}): Action =>
    action(
      `Start ${vm.name}`,
      "vm_start",
      {
        ...of(vm),
        body: { ...(discardMemory ? { discard_memory: true } : {}), ...(paused ? { paused } : {}) },
      },
      ["vm", "start", vm.name, discardMemory && "--discard-memory", paused && "--paused"],
    ),
  stop: (vm: Named, stopping: Stopping): Action =>
    action(`Stop ${vm.name}`, "vm_stop", { ...of(vm), body: stopBody(stopping) }, [
      "vm",
      "stop",
      vm.name,
      ...stopWords(stopping),
    ]),
  restart: (vm: Named, stopping: Stopping): Action =>
    action(`Restart ${vm.name}`, "vm_restart", { ...of(vm), body: stopBody(stopping) }, [
      "vm",
      "restart",
      vm.name,
      ...stopWords(stopping),
    ]),
  pause: (vm: Named): Action =>
    action(`Pause ${vm.name}`, "vm_pause", { ...of(vm), body: {} }, ["vm", "pause", vm.name]),
  resume: (vm: Named): Action =>
    action(`Resume ${vm.name}`, "vm_resume", { ...of(vm), body: {} }, ["vm", "resume", vm.name]),
  suspend: (vm: Named): Action =>
    action(`Suspend ${vm.name}`, "vm_suspend", { ...of(vm), body: {} }, ["vm", "suspend", vm.name]),
  reset: (vm: Named): Action =>
    action(`Reset ${vm.name}`, "vm_reset", { ...of(vm), body: {} }, ["vm", "reset", vm.name]),
};

export type PowerVerb = keyof typeof power;

const ON: readonly PowerState[] = ["running", "paused", "starting", "key_unavailable", "unknown"];

/** In which states an action on power makes sense. */
const FITS: Readonly<Record<PowerVerb, readonly PowerState[]>> = {
  start: ["stopped", "crashed", "suspended", "unknown"],
  stop: [...ON, "stopping"],
  restart: ["running", "paused"],
  pause: ["running"],
  resume: ["paused"],
  suspend: ["running", "paused"],
  reset: ["running", "paused"],
};

/** Why a VM in this state does not take an action; nothing if it does. */
export function misfit(
  verb: PowerVerb,
  { power: state, template }: Pick<VmSummary, "power" | "template">,
  word: string,
): string | undefined {
  if (template === true) return "It is a template, which is only cloned.";
  if (FITS[verb].includes(state)) return undefined;
  return state === "key_unavailable" ? "It waits for its key." : `It is ${word.toLowerCase()}.`;
}
