import type { Right, Vm } from "../../api/types";
import { useRefusal } from "../../session/useMe";

/** Says why something cannot be done with a VM now, by its caller or at all. */
export function useVmRefusal(vm: Vm): (operation: Right) => string | undefined {
  const refusal = useRefusal();
  const { id, name, encrypted, folder = null } = vm;
  const isBusy = typeof vm.task === "string" || vm.lifecycle !== "present";
  return (operation) =>
    refusal(operation, { vm: { id, name, encrypted, folder } }) ??
    (isBusy ? "A task works on it, and one does at a time." : undefined);
}
