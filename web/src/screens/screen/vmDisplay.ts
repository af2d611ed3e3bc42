import RFB from "@novnc/novnc";
import { GuestLink, type Use } from "../../guest/link";
import { Store } from "../../lib/store";
import { BACKSPACE, CONTROL, difference, keysymsOf, type Chord } from "./keys";

/** Characters of a clipboard; more belongs into a file. */
export const CLIPBOARD_MAX = 256 * 1024;
/** What a phone's keyboard finds, so that it has something to take away. */
const PADDING = "_".repeat(32);

function wanted(isViewOnly: boolean): Use {
  return { operation: "vnc", read_only: isViewOnly };
}

/** The screen of a VM: its picture, its keyboard and its mouse. */
export class VmDisplay {
  readonly link: GuestLink;
  readonly isViewOnly: Store<boolean>;
  /** What the guest has copied last; it goes no further by itself. */
  readonly copied = new Store("");
  #place: HTMLElement | undefined;
  #rfb: RFB | undefined;
  #typed = PADDING;

  constructor(vm: string, isViewOnly: boolean) {
    this.isViewOnly = new Store(isViewOnly);
    this.link = new GuestLink(vm, wanted(isViewOnly), {
      opened: (socket) => this.#opened(socket),
      ended: () => this.#ended(),
    });
  }

  /** Shows it at a place of the page. Returns how to end that. */
  attach(place: HTMLElement, leave: () => void): () => void {
    this.#place = place;
    const pressed = (event: KeyboardEvent) => {
      const { ctrlKey, shiftKey, altKey, key } = event;
      if (!ctrlKey || shiftKey || altKey || key !== "]") return;
      event.preventDefault();
      event.stopPropagation();
      // It is held for the guest, which does not see it let go.
      for (const { keysym, code } of [CONTROL, { keysym: 0xffe4, code: "ControlRight" }])
        this.#rfb?.sendKey(keysym, code, false);
      leave();
    };
    place.addEventListener("keydown", pressed, { capture: true });
    return () => {
      place.removeEventListener("keydown", pressed, { capture: true });
      this.#ended();
      this.#place = undefined;
    };
  }

  focus(): void {
    this.#rfb?.focus({ preventScroll: true });
  }

  /** Only looks, or types again, with a ticket for that: the host passes nothing on of who looks. */
  view(isOnly: boolean): void {
    if (this.isViewOnly.state() === isOnly) return;
    this.isViewOnly.become(isOnly);
    this.link.becomes(wanted(isOnly));
  }

  press({ keys }: Chord): void {
    if (this.isViewOnly.state()) return;
    for (const { keysym, code } of keys) this.#rfb?.sendKey(keysym, code, true);
    for (const { keysym, code } of [...keys].reverse()) this.#rfb?.sendKey(keysym, code, false);
    this.focus();
  }

  /** Gives the guest a text to paste, if it has an agent that takes it. */
  giveClipboard(text: string): void {
    if (!this.isViewOnly.state()) this.#rfb?.clipboardPasteFrom(text);
    this.focus();
  }

  /** Types a text, for a guest that takes no clipboard. */
  type(text: string): void {
    if (this.isViewOnly.state()) return;
    for (const keysym of keysymsOf(text)) this.#rfb?.sendKey(keysym, null);
  }

  /** Takes what a phone's keyboard has done to its field. Returns what the field is to have. */
  takeTyped(value: string): string {
    const { taken, added } = difference(this.#typed, value);
    for (let count = 0; count < taken; count += 1)
      if (!this.isViewOnly.state()) this.#rfb?.sendKey(BACKSPACE, "Backspace");
    this.type(added);
    // Words are completed in place; the field is emptied between them.
    this.#typed = /\s$/.test(value) || value.length < PADDING.length / 2 ? PADDING : value;
    return this.#typed;
  }

  /** What a phone's keyboard begins with. */
  beginTyped(): string {
    this.#typed = PADDING;
    return PADDING;
  }

  #opened(socket: WebSocket): void {
    if (this.#place === undefined) return;
    const rfb = new RFB(this.#place, socket, { shared: true });
    rfb.scaleViewport = true;
    rfb.viewOnly = this.isViewOnly.state();
    rfb.background = "#000";
    rfb.showDotCursor = true;
    const isNow = () => this.#rfb === rfb;
    rfb.addEventListener("connect", () => {
      if (isNow()) this.focus();
    });
    rfb.addEventListener("clipboard", ({ detail: { text } }) => {
      if (isNow()) this.copied.become(text.slice(0, CLIPBOARD_MAX));
    });
    this.#rfb = rfb;
  }

  #ended(): void {
    const rfb = this.#rfb;
    this.#rfb = undefined;
    rfb?.disconnect();
  }
}
