import type { ReactNode } from "react";
import {
  Button as Pressable,
  Menu as List,
  MenuItem,
  MenuTrigger,
  Popover,
} from "react-aria-components";
import { Icon, type IconName } from "./Icon";

export interface Choice {
  id: string;
  label: string;
  hint?: string;
  icon?: IconName;
  isDangerous?: boolean;
  /** Why it cannot be chosen now. */
  refusal?: string | undefined;
  choose: () => void;
}

interface Props {
  label: string;
  choices: readonly Choice[];
  children?: ReactNode;
  icon?: IconName;
  look?: "plain" | "quiet" | "primary";
}

/** A button with a list of what can be done. */
export function Menu({ label, choices, children, icon, look = "plain" }: Props) {
  const hasWords = children !== undefined;
  return (
    <MenuTrigger>
      <Pressable
        className={`button button-${look}${hasWords ? "" : " button-icon"}`}
        aria-label={label}
      >
        {icon === undefined ? null : <Icon name={icon} size={16} />}
        {children}
        {hasWords ? <Icon name="down" size={14} /> : null}
      </Pressable>
      <Popover className="popover" placement="bottom end">
        <List
          aria-label={label}
          className="menu"
          disabledKeys={choices.filter(({ refusal }) => refusal !== undefined).map(({ id }) => id)}
          onAction={(id) => choices.find((choice) => choice.id === id)?.choose()}
        >
          {choices.map((choice) => (
            <MenuItem
              key={choice.id}
              id={choice.id}
              textValue={choice.label}
              className={choice.isDangerous === true ? "menu-item menu-item-danger" : "menu-item"}
            >
              {choice.icon === undefined ? null : <Icon name={choice.icon} size={16} />}
              <span className="menu-words">
                {choice.label}
                {(choice.refusal ?? choice.hint) ? (
                  <span className="menu-hint">{choice.refusal ?? choice.hint}</span>
                ) : null}
              </span>
            </MenuItem>
          ))}
        </List>
      </Popover>
    </MenuTrigger>
  );
}
