import type { Right, Vm } from "../../api/types";
import { useRefusal } from "../../session/useMe";

/**
 * Says why something cannot be done with a VM now, by its caller or at all. Its guest is looked at
 * whatever works on the VM.
 */
export function useVmRefusal(vm: Vm): (operation: Right) => string | undefined {
  const refusal = useRefusal();
  const { id, name, encrypted, folder = null } = vm;
  const isBusy = typeof vm.task === "string" || vm.lifecycle !== "present";
  return (operation) =>
    refusal(operation, { vm: { id, name, encrypted, folder } }) ??
    (isBusy && operation !== "vm_ticket"
      ? "A task works on it, and one does at a time."
      : undefined);
}
