import { useEffect, useRef, useState } from "react";
import type { Vm } from "../../api/types";
import { GuestScreen, PlainTextNote } from "../../guest/GuestScreen";
import { LinkMark, LinkNote } from "../../guest/LinkNote";
import { useLook } from "../../guest/look";
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
  const [isLook, look] = useLook();
  const [shown] = useState(() => new VmConsole(vm.name, isLook));
  const place = useRef<HTMLDivElement>(null);
  const leave = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const box = place.current;
    if (box === null) return undefined;
    return shown.attach(box, () => leave.current?.querySelector("button")?.focus());
  }, [shown]);
  useLink(shown.link, vm);
  useEffect(() => shown.look(isLook), [shown, isLook]);
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
          <ConsoleBar shown={shown} vm={vm} isLook={isLook} onLook={look} />
        </div>
        <LinkNote link={shown.link} vm={vm} />
        {isLook ? null : <ReadOnlyNote shown={shown} />}
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
      <PlainTextNote
        command={`strongroom vm console ${vm.name}${isLook ? " --read-only" : ""}`}
        record="vm.console_opened"
      />
      {asked?.what === "paste" ? (
        <PasteDialog shown={shown} text={asked.text} onClose={close} />
      ) : null}
      {asked?.what === "link" ? <LinkDialog url={asked.url} vm={vm.name} onClose={close} /> : null}
    </>
  );
}

/** Why nothing is typed although somebody wants to, and how to take over. */
function ReadOnlyNote({ shown }: { shown: VmConsole }) {
  const state = useStore(shown.link.state);
  const { isLeft, takenBy } = useStore(shown.writing);
  if (state.is !== "open" || state.writer) return null;
  const title = isLeft
    ? "Another tab has taken over"
    : takenBy === undefined
      ? "Looking only: somebody else writes"
      : `Looking only: ${takenBy} has taken over`;
  return (
    <div className="guest-lost">
      <Note tone="warning" title={title}>
        <p>
          A console has one writer at a time. Who writes now is told that you have taken over, and
          reads from then on; it is on record.
        </p>
      </Note>
      <Button onPress={() => shown.takeOver()}>
        {isLeft || takenBy !== undefined ? "Take over again" : "Take over"}
      </Button>
    </div>
  );
}
