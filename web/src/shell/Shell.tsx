import { useEffect, useRef, useState, type ReactNode } from "react";
import { useLocation } from "wouter";
import type { Begun } from "../session/SessionGate";
import { ExpiredDialog } from "../session/ExpiredDialog";
import { useEvents } from "../live/useLive";
import { Toasts } from "../ui/Toasts";
import { Dialog } from "../ui/Dialog";
import { LiveNotice } from "./LiveNotice";
import { Navigation } from "./Navigation";
import { Palette } from "./Palette";
import { TasksDrawer } from "./TasksDrawer";
import { wantTitleFocus } from "./titleFocus";
import { TopBar } from "./TopBar";

type Layer = "menu" | "palette" | "tasks";

/** What is around every screen. */
export function Shell({ begun, children }: { begun: Begun; children: ReactNode }) {
  useEvents(begun.after);
  const [layer, setLayer] = useState<Layer>();
  const close = () => setLayer(undefined);
  useFocusOnScreens();
  usePaletteKey(() => setLayer("palette"));

  return (
    <div className="shell">
      <a className="skip" href="#screen">
        Skip to the content
      </a>
      <TopBar
        onMenu={() => setLayer("menu")}
        onSearch={() => setLayer("palette")}
        onTasks={() => setLayer("tasks")}
      />
      <aside className="rail">
        <Navigation />
      </aside>
      <main id="screen" className="screen" tabIndex={-1}>
        <LiveNotice />
        {children}
      </main>
      <Toasts />
      {layer === "menu" ? (
        <Dialog title="Menu" side onClose={close}>
          <Navigation onChosen={close} />
        </Dialog>
      ) : null}
      {layer === "palette" ? <Palette onClose={close} /> : null}
      {layer === "tasks" ? <TasksDrawer onClose={close} /> : null}
      <ExpiredDialog name={begun.me.name} />
    </div>
  );
}

/** Moves the focus to the title of a new screen, as a browser does with a new page. */
function useFocusOnScreens(): void {
  const [address] = useLocation();
  const screen = address.split("/").slice(0, 3).join("/");
  const former = useRef(screen);
  useEffect(() => {
    if (former.current === screen) return;
    former.current = screen;
    window.scrollTo(0, 0);
    wantTitleFocus();
  }, [screen]);
}

function usePaletteKey(open: () => void): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const isTyping =
        event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
      const isKey = event.key === "k" && (event.ctrlKey || event.metaKey);
      if (!isKey && !(event.key === "/" && !isTyping)) return;
      event.preventDefault();
      open();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });
}
