import { action, commandLine, type Action } from "./action";

interface Named {
  name: string;
}

export function createDump(vm: Named, label: string | undefined): Action {
  return action(
    `Dump the memory of ${vm.name}`,
    "vm_dump",
    { path: { vm: vm.name }, body: label === undefined ? {} : { label } },
    ["vm", "dump", "create", vm.name, ...(label === undefined ? [] : ["--label", label])],
  );
}

export function deleteDump(vm: Named, number: number): Action {
  return action(
    `Delete dump ${number} of ${vm.name}`,
    "vm_dump_delete",
    { path: { vm: vm.name, dump: number } },
    ["vm", "dump", "delete", vm.name, String(number), "--yes"],
  );
}

/** The command that writes a dump to a file in plain text, which no browser can have. */
export function openDumpLine(vm: Named, number: number): string {
  const file = `${vm.name}-${number}.core`;
  return commandLine({ command: ["vm", "dump", "open", vm.name, String(number), "--to", file] });
}
