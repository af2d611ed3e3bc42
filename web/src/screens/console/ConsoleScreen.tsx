import { useEffect, useRef, useState } from "react";
import type { Vm } from "../../api/types";
import { GuestScreen, PlainTextNote } from "../../guest/GuestScreen";
import { LinkMark, LinkNote } from "../../guest/LinkNote";
import { useLink } from "../../guest/useLink";
import { useStore } from "../../lib/store";
import { Button } from "../../ui/Button";
import { Note } from "../../ui/Notes";
import { ConsoleBar } from "./ConsoleBar";
import { FindBar } from "./FindBar";
import { KeyRow } from "./KeyRow";
import { LinkDialog } from "./LinkDialog";
import { PasteDialog } from "./PasteDialog";
import { VmConsole } from "./vmConsole";

export default function ConsoleScreen() {
  return <GuestScreen what="Console" Part={ConsolePart} />;
}

function ConsolePart({ vm }: { vm: Vm }) {
  const [shown] = useState(() => new VmConsole(vm.name));
  const place = useRef<HTMLDivElement>(null);
  const leave = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const box = place.current;
    if (box === null) return undefined;
    return shown.attach(box, () => leave.current?.querySelector("button")?.focus());
  }, [shown]);
  useLink(shown.link, vm);
  const asked = useStore(shown.asked);
  const close = () => {
    shown.asked.become(undefined);
    shown.focus();
  };
  return (
    <>
      <section className="guest" aria-label={`Console of ${vm.name}`}>
        <div className="guest-bar" ref={leave}>
          <LinkMark link={shown.link} vm={vm} />
          <ConsoleBar shown={shown} vm={vm} />
        </div>
        <LinkNote link={shown.link} vm={vm} />
        <ReadOnlyNote shown={shown} />
        {asked?.what === "find" ? <FindBar shown={shown} onClose={close} /> : null}
        <div className="guest-place">
          <div ref={place} className="terminal-place" />
        </div>
        <KeyRow shown={shown} />
      </section>
      <p className="small soft guest-hint">
        <kbd>Ctrl</kbd> <kbd>]</kbd> leaves the console for the buttons above it. <kbd>Ctrl</kbd>{" "}
        <kbd>Shift</kbd> with <kbd>C</kbd>, <kbd>V</kbd> and <kbd>F</kbd> copies, pastes and finds.
      </p>
      <PlainTextNote command={`strongroom vm console ${vm.name}`} record="vm.console_opened" />
      {asked?.what === "paste" ? (
        <PasteDialog shown={shown} text={asked.text} onClose={close} />
      ) : null}
      {asked?.what === "link" ? <LinkDialog url={asked.url} vm={vm.name} onClose={close} /> : null}
    </>
  );
}

function ReadOnlyNote({ shown }: { shown: VmConsole }) {
  const state = useStore(shown.link.state);
  const { isLeft } = useStore(shown.writing);
  if (state.is !== "open" || state.writer) return null;
  return (
    <div className="guest-lost">
      <Note
        tone="warning"
        title={isLeft ? "Another tab has taken over" : "Read only: somebody else writes"}
      >
        <p>
          A console has one writer at a time. Who writes now is told that you have taken over, and
          reads from then on; it is on record.
        </p>
      </Note>
      <Button onPress={() => shown.takeOver()}>Take over</Button>
    </div>
  );
}
