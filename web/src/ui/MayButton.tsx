import type { ReactNode } from "react";
import type { Right } from "../api/types";
import { useRefusal } from "../session/useMe";
import { Button, type Look } from "./Button";
import type { IconName } from "./Icon";

interface Props {
  operation: Right;
  onPress: () => void;
  look?: Look;
  icon?: IconName;
  children: ReactNode;
}

/** A button for what the caller may do; it says why, if it may not. */
export function MayButton({ operation, onPress, look = "plain", icon, children }: Props) {
  const why = useRefusal()(operation);
  return (
    <Button look={look} why={why} onPress={onPress} {...(icon === undefined ? {} : { icon })}>
      {children}
    </Button>
  );
}
