import { call } from "../api/call";
import { Problem } from "../api/problem";
import type { Schemas } from "../api/types";
import { commandSize } from "../lib/units";
import { action, type Action } from "./action";

type Change = Schemas["VolumeChange"];
type ChangeOf<Kind extends Change["change"]> = Omit<Extract<Change, { change: Kind }>, "change">;

/** A change of one volume. The API takes many at once, and answers each: this one, its task. */
function changing(
  label: string,
  change: Change,
  command: readonly (string | false | undefined)[],
): Action {
  const request = { body: { changes: [change] } };
  return {
    ...action(label, "volume_change", request, ["disk", ...command]),
    send: async (key) => {
      const { changes } = await call("volume_change", request, { key, what: label });
      const [answer] = changes;
      if (answer !== undefined && "task" in answer) return answer.task;
      const { code, message, next_step } = answer?.error ?? {
        code: "internal" as const,
        message: "the server has not answered the change",
      };
      throw new Problem(code, message, next_step ?? undefined);
    },
  };
}

const option = (name: string, value: string | null | undefined) =>
  value === undefined || value === null ? [] : [name, value];

export function createVolume(wish: ChangeOf<"create">): Action {
  const { name, size_bytes, datastore, folder, key_provider } = wish;
  return changing(`Create disk ${name}`, { change: "create", ...wish }, [
    ...["create", name, "--size", commandSize(size_bytes)],
    ...option("--datastore", datastore),
    ...option("--folder", folder),
    wish.thick === true && "--thick",
    wish.integrity === true && "--integrity",
    ...option("--key-provider", key_provider),
    wish.encrypted === false && "--unencrypted",
  ]);
}

export function cloneVolume(wish: ChangeOf<"clone">): Action {
  const { volume, name, snapshot, linked, datastore } = wish;
  return changing(`Clone disk ${volume} as ${name}`, { change: "clone", ...wish }, [
    ...["clone", volume, name],
    ...option("--snapshot", snapshot),
    linked === true && "--linked",
    ...option("--datastore", datastore),
  ]);
}

export function resizeVolume(volume: string, size: number): Action {
  return changing(`Grow disk ${volume}`, { change: "resize", volume, size_bytes: size }, [
    ...["resize", volume, "--size", commandSize(size)],
  ]);
}

export function snapshotVolume(volume: string, name: string): Action {
  return changing(`Snapshot ${name} of disk ${volume}`, { change: "snapshot", volume, name }, [
    ...["snapshot", "create", volume, name],
  ]);
}

/** Without `discard`, the present content is kept as a snapshot. */
export function revertVolume(wish: ChangeOf<"revert">): Action {
  const { volume, snapshot, keep_as, discard } = wish;
  return changing(`Revert disk ${volume} to ${snapshot}`, { change: "revert", ...wish }, [
    ...["snapshot", "revert", volume, snapshot],
    ...option("--keep-as", keep_as),
    discard === true && "--discard",
    discard === true && "--yes",
  ]);
}

export function deleteVolumeSnapshot(volume: string, snapshot: string): Action {
  return changing(
    `Delete snapshot ${snapshot} of disk ${volume}`,
    { change: "delete_snapshot", volume, snapshot },
    ["snapshot", "delete", volume, snapshot, "--yes"],
  );
}

/** Gives a disk that no VM has to a VM, as its next one. */
export function bindVolume(volume: string, vm: string): Action {
  return changing(`Give disk ${volume} to ${vm}`, { change: "bind", volume, vm }, [
    ...["bind", volume, vm],
  ]);
}

/** Takes a disk from a VM, and keeps it under a name of its own. */
export function unbindVolume(volume: string, name: string | undefined): Action {
  return changing(
    `Take disk ${volume} from its VM`,
    { change: "unbind", volume, ...(name === undefined ? {} : { name }) },
    ["unbind", volume, ...option("--name", name)],
  );
}

export function deleteVolume(volume: string, leaveToClones: boolean): Action {
  return changing(
    `Delete disk ${volume}`,
    { change: "delete", volume, ...(leaveToClones ? { leave_to_clones: true } : {}) },
    ["delete", volume, "--yes", leaveToClones && "--leave-to-clones"],
  );
}
