import type { Schemas } from "../../api/types";

type Scope = Schemas["Scope"];

/** A scope as it is chosen. */
export interface ScopeDraft {
  type: Scope["type"];
  name: string;
}

export const wholeSite: ScopeDraft = { type: "site", name: "" };

/** The scope; nothing while the name is missing. */
export function scopeOf({ type, name }: ScopeDraft): Scope | undefined {
  if (type === "site") return { type };
  if (name === "") return undefined;
  switch (type) {
    case "folder":
      return { type, folder: name };
    case "vm":
      return { type, vm: name };
    case "datastore":
      return { type, datastore: name };
    case "network":
      return { type, network: name };
  }
}
