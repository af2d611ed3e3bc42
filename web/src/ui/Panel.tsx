import { useEffect, useId, type ReactNode } from "react";
import { titleIsThere } from "../shell/titleFocus";

/** A titled part of a screen. */
export function Panel({
  title,
  aside,
  children,
  isFlush = false,
}: {
  title: string;
  aside?: ReactNode;
  children: ReactNode;
  isFlush?: boolean;
}) {
  const id = useId();
  return (
    <section className="panel" aria-labelledby={id}>
      <header className="panel-head">
        <h2 id={id}>{title}</h2>
        {aside === undefined ? null : <div className="panel-aside">{aside}</div>}
      </header>
      <div className={isFlush ? "panel-body panel-body-flush" : "panel-body"}>{children}</div>
    </section>
  );
}

export interface Fact {
  label: string;
  value: ReactNode;
}

/** Pairs of a name and a value. */
export function Facts({ facts }: { facts: readonly (Fact | undefined)[] }) {
  return (
    <dl className="facts">
      {facts
        .filter((fact) => fact !== undefined)
        .map(({ label, value }) => (
          <div key={label} className="fact">
            <dt>{label}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

/** The head of a screen: where it is, what it shows, what can be done. */
export function ScreenHead({
  title,
  above,
  beside,
  actions,
  children,
}: {
  title: string;
  above?: ReactNode;
  beside?: ReactNode;
  actions?: ReactNode;
  children?: ReactNode;
}) {
  useEffect(titleIsThere, []);
  return (
    <header className="screen-head">
      {above === undefined ? null : <div className="screen-above">{above}</div>}
      <div className="screen-line">
        <h1 tabIndex={-1} data-screen-title="">
          {title}
        </h1>
        {beside}
        {actions === undefined ? null : <div className="screen-actions">{actions}</div>}
      </div>
      {children}
    </header>
  );
}
