import type { Schemas, VolumeRight } from "../../api/types";
import { useMe, useRefusal } from "../../session/useMe";

type Volume = Pick<Schemas["Volume"], "id" | "name" | "encrypted">;

/**
 * Says why the caller may not change a disk that no VM has. The API does not say in which folder
 * such a disk is, so who has roles in folders is refused by the server alone.
 */
export function useDiskRefusal(
  disk: Volume,
  task?: string | null,
): (operation: VolumeRight) => string | undefined {
  const { grants } = useMe();
  const refusal = useRefusal();
  const hasFolders = grants.some(({ scope }) => scope.type === "folder");
  const { id, name, encrypted } = disk;
  return (operation) =>
    (hasFolders ? undefined : refusal(operation, { vm: { id, name: name ?? id, encrypted } })) ??
    (typeof task === "string" ? "A task works on it, and one does at a time." : undefined);
}
