import { count } from "../../../lib/units";

/** One VM by its name, several by their number. */
export function named(vms: readonly { name: string }[]): string {
  const [first] = vms;
  return vms.length === 1 && first !== undefined ? first.name : `${count(vms.length)} VMs`;
}
