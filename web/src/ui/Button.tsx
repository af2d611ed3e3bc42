import type { ReactNode } from "react";
import { Button as Pressable, type ButtonProps } from "react-aria-components";
import { Link } from "wouter";
import { Icon, type IconName } from "./Icon";

export type Look = "primary" | "plain" | "quiet" | "danger";

interface Face {
  /** It has been pressed, and what it does is not done. */
  isBusy?: boolean;
  look?: Look;
  icon?: IconName;
  children?: ReactNode;
}

function Content({ icon, children }: Face) {
  return (
    <>
      {icon === undefined ? null : <Icon name={icon} size={16} />}
      {children}
    </>
  );
}

export function Button({
  look = "plain",
  icon,
  isBusy = false,
  children,
  ...rest
}: Face & Omit<ButtonProps, "children" | "className">) {
  return (
    <Pressable
      {...rest}
      {...(isBusy ? { "data-busy": "" } : {})}
      className={`button button-${look}`}
    >
      <Content {...(icon === undefined ? {} : { icon })}>{children}</Content>
    </Pressable>
  );
}

/** A button that is only a drawing; its label is for those who do not see it. */
export function IconButton({
  icon,
  label,
  ...rest
}: { icon: IconName; label: string } & Omit<ButtonProps, "children" | "className">) {
  return (
    <Pressable {...rest} aria-label={label} className="button button-quiet button-icon">
      <Icon name={icon} />
    </Pressable>
  );
}

/** An address that looks like a button. */
export function ButtonLink({ to, look = "plain", icon, children }: Face & { to: string }) {
  return (
    <Link href={to} className={`button button-${look}`}>
      <Content {...(icon === undefined ? {} : { icon })}>{children}</Content>
    </Link>
  );
}
