import type { ReactNode } from "react";
import type { Right } from "../api/types";
import { Note } from "../ui/Notes";
import { useRefusal } from "./useMe";

/** What only those see who may do an operation; the others are told why it is missing. */
export function Needs({ operation, children }: { operation: Right; children: ReactNode }) {
  const why = useRefusal()(operation);
  return why === undefined ? (
    children
  ) : (
    <Note title="This takes another right">
      <p>{why}</p>
    </Note>
  );
}
