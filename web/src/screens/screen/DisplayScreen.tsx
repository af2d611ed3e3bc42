import { useEffect, useRef, useState } from "react";
import type { Vm } from "../../api/types";
import { FullScreenButton } from "../../guest/FullScreen";
import { GuestScreen, PlainTextNote } from "../../guest/GuestScreen";
import { LinkMark, LinkNote } from "../../guest/LinkNote";
import { useLook } from "../../guest/look";
import { useLink } from "../../guest/useLink";
import { useStore } from "../../lib/store";
import { Button } from "../../ui/Button";
import { Menu } from "../../ui/Menu";
import { Empty } from "../../ui/Notes";
import { ClipboardDialog } from "./ClipboardDialog";
import { CHORDS, CONTROL_ALT_DELETE } from "./keys";
import { TouchKeyboard } from "./TouchKeyboard";
import { VmDisplay } from "./vmDisplay";

export default function DisplayScreen() {
  return <GuestScreen what="Screen" Part={DisplayPart} />;
}

function DisplayPart({ vm }: { vm: Vm }) {
  if (vm.vnc === true) return <Display vm={vm} />;
  return (
    <Empty icon="vm" title={`${vm.name} has no screen`}>
      <p>
        It was made without one (<code>vnc</code> of the API). Its console is a serial line, which
        every VM has.
      </p>
    </Empty>
  );
}

function Display({ vm }: { vm: Vm }) {
  const [isLook, look] = useLook();
  const [shown] = useState(() => new VmDisplay(vm.name, isLook));
  const [isClipboard, setClipboard] = useState(false);
  const place = useRef<HTMLDivElement>(null);
  const bar = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const box = place.current;
    if (box === null) return undefined;
    return shown.attach(box, () => bar.current?.querySelector("button")?.focus());
  }, [shown]);
  useLink(shown.link, vm);
  useEffect(() => shown.view(isLook), [shown, isLook]);
  const isOnlyViewed = useStore(shown.isViewOnly);
  const isOpen = useStore(shown.link.state).is === "open";
  const isIdle = isOnlyViewed || !isOpen;
  return (
    <>
      <section className="guest" aria-label={`Screen of ${vm.name}`}>
        <div className="guest-bar" ref={bar}>
          <LinkMark link={shown.link} vm={vm} />
          <div className="guest-bar-end">
            <Button isDisabled={isIdle} onPress={() => shown.press(CONTROL_ALT_DELETE)}>
              Ctrl Alt Del
            </Button>
            <Menu
              label={`Keys for ${vm.name}`}
              choices={CHORDS.map((chord) => ({
                id: chord.id,
                label: chord.label,
                refusal: isIdle ? "Nothing is typed now." : undefined,
                choose: () => shown.press(chord),
              }))}
            >
              Keys
            </Menu>
            <Button isDisabled={!isOpen} onPress={() => setClipboard(true)}>
              Clipboard&hellip;
            </Button>
            <TouchKeyboard shown={shown} isDisabled={isIdle} />
            <Button onPress={() => look(!isLook)}>{isLook ? "Type and click" : "Look only"}</Button>
            <FullScreenButton />
          </div>
        </div>
        <LinkNote link={shown.link} vm={vm} />
        <div className="guest-place screen-place">
          <div ref={place} className="screen-target" />
        </div>
      </section>
      <p className="small soft guest-hint">
        <kbd>Ctrl</kbd> <kbd>]</kbd> leaves the screen for the buttons above it.
      </p>
      <PlainTextNote
        command={`strongroom vm screen ${vm.name}${isLook ? " --read-only" : ""}`}
        record="vm.screen_opened"
      />
      {isClipboard ? (
        <ClipboardDialog shown={shown} vm={vm.name} onClose={() => setClipboard(false)} />
      ) : null}
    </>
  );
}
