import { useId, type ReactNode } from "react";
import { Button as Pressable, type ButtonProps } from "react-aria-components";
import { Link } from "wouter";
import { Icon, type IconName } from "./Icon";

export type Look = "primary" | "plain" | "quiet" | "danger";

interface Face {
  /** It has been pressed, and what it does is not done. */
  isBusy?: boolean;
  look?: Look;
  icon?: IconName;
  /** What it does, or how it can be done elsewhere: the browser's button takes no such text. */
  "aria-description"?: string | undefined;
  /** Why it cannot be pressed now. */
  why?: string | undefined;
  children?: ReactNode;
}

function Content({ icon, children }: Pick<Face, "icon" | "children">) {
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
  why,
  "aria-description": does,
  isDisabled = false,
  children,
  ...rest
}: Face & Omit<ButtonProps, "children" | "className">) {
  const id = useId();
  const said = why ?? does;
  const button = (
    <Pressable
      {...rest}
      isDisabled={isDisabled || why !== undefined}
      {...(isBusy ? { "data-busy": "" } : {})}
      {...(said === undefined ? {} : { "aria-describedby": id })}
      className={`button button-${look}`}
    >
      <Content {...(icon === undefined ? {} : { icon })}>{children}</Content>
    </Pressable>
  );
  if (said === undefined) return button;
  const words = (
    <span id={id} hidden>
      {said}
    </span>
  );
  // What is disabled takes no pointer: what is around it says why.
  return why === undefined ? (
    <>
      {button}
      {words}
    </>
  ) : (
    <span className="may" title={why}>
      {button}
      {words}
    </span>
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
export function ButtonLink({
  to,
  look = "plain",
  icon,
  children,
}: Pick<Face, "look" | "icon" | "children"> & { to: string }) {
  return (
    <Link href={to} className={`button button-${look}`}>
      <Content {...(icon === undefined ? {} : { icon })}>{children}</Content>
    </Link>
  );
}
