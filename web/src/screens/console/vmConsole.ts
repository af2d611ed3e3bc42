import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { NEWS_COMMAND, readNews, type Welcome } from "../../guest/first";
import { GuestLink } from "../../guest/link";
import { askForConsole, hearOfConsole } from "../../guest/tabs";
import { Store } from "../../lib/store";
import { Backlog } from "./backlog";
import { colours } from "./colours";
import { sentBy, withControl, type Key } from "./keys";
import { safeLink } from "./links";
import { linesOf, PASTE_MAX, pasted, pieces } from "./paste";
import { isReply } from "./replies";
import { settings } from "./settings";
import { styledDocument, styleRows } from "./styledDocument";

/** Lines above the screen that are kept. */
const SCROLLBACK_LINES = 5_000;
/** From a host that does not say how much it is, what comes so soon is the guest's former output. */
const FORMER_MS = 300;

/** What a person is asked about. */
export type Asked = { what: "paste"; text: string } | { what: "link"; url: URL } | { what: "find" };

export interface Writing {
  /** Left to another tab of this browser, which has asked for it. */
  isLeft: boolean;
  /** Who else has taken over while this tab wrote, as the host says. */
  takenBy?: string;
}

const CONSOLE = { operation: "console" } as const;
const CONSOLE_TAKEN = { operation: "console", take_over: true } as const;
const CONSOLE_TO_READ = { operation: "console", read_only: true } as const;

/** Draws a line between what the guest has said before and what it says from now on. */
function drawLine(terminal: Terminal): void {
  // A program that has the whole screen has no place for it.
  const marker = terminal.buffer.active.type === "normal" ? terminal.registerMarker(0) : undefined;
  if (marker === undefined) return;
  const line = terminal.registerDecoration({ marker, width: terminal.cols, layer: "top" });
  line?.onRender((element) => {
    element.classList.add("terminal-former");
    element.title = "Above: what the guest has said before this connection";
  });
}

/** The console of a VM: a terminal, and the connection to its guest. */
export class VmConsole {
  readonly link: GuestLink;
  readonly asked = new Store<Asked | undefined>(undefined);
  /** Ctrl is held for the next character. */
  readonly isControl = new Store(false);
  readonly writing = new Store<Writing>({ isLeft: false });
  readonly #vm: string;
  #terminal: Terminal | undefined;
  #search: SearchAddon | undefined;
  #socket: WebSocket | undefined;
  #isWriter = false;
  #isLook: boolean;
  /** By what news of the host is known in the output. */
  #news: string | undefined;
  /** The next connection is in the place of whoever writes. */
  #isTaking = false;
  /** Pieces of the guest's former output that the terminal has not read yet. */
  #former = 0;
  #leave: () => void = () => undefined;

  constructor(vm: string, isLook: boolean) {
    this.#vm = vm;
    this.#isLook = isLook;
    this.link = new GuestLink(vm, isLook ? CONSOLE_TO_READ : CONSOLE, {
      opened: (socket, welcome) => this.#opened(socket, welcome),
      ended: () => this.#ended(),
    });
  }

  /** Shows it at a place of the page. Returns how to end that. */
  attach(place: HTMLElement, leave: () => void): () => void {
    this.#leave = leave;
    const terminal = new Terminal({
      documentOverride: styledDocument(),
      scrollback: SCROLLBACK_LINES,
      fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--font-code"),
      fontSize: settings.state().fontSize,
      screenReaderMode: settings.state().isRead,
      theme: colours(),
      minimumContrastRatio: 4.5,
      disableStdin: true,
      // Of what is not final in it, the line below former output is used.
      allowProposedApi: true,
      // A guest neither moves nor measures the window, and its links are asked about.
      windowOptions: {},
      linkHandler: { activate: (_, text) => this.#askForLink(text), allowNonHttpProtocols: false },
    });
    const fit = new FitAddon();
    const search = new SearchAddon();
    terminal.loadAddon(fit);
    terminal.loadAddon(search);
    terminal.loadAddon(new WebLinksAddon((_, text) => this.#askForLink(text)));
    terminal.open(place);
    styleRows(terminal);
    terminal.parser.registerOscHandler(NEWS_COMMAND, (said) => this.#hears(said));
    terminal.onData((text) => this.#said(text));
    terminal.onBinary((text) => this.#sendBytes(Uint8Array.from(text, (one) => one.charCodeAt(0))));
    terminal.attachCustomKeyEventHandler((event) => this.#takesKey(event));
    fit.fit();
    this.#terminal = terminal;
    this.#search = search;

    const sizes = new ResizeObserver(() => fit.fit());
    sizes.observe(place);
    const themes = new MutationObserver(() => (terminal.options.theme = colours()));
    themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const unset = settings.subscribe(() => {
      const { fontSize, isRead } = settings.state();
      terminal.options.fontSize = fontSize;
      terminal.options.screenReaderMode = isRead;
      fit.fit();
    });
    const taken = (event: ClipboardEvent) => {
      event.preventDefault();
      event.stopPropagation();
      this.paste(event.clipboardData?.getData("text/plain") ?? "");
    };
    place.addEventListener("paste", taken, { capture: true });
    const unhear = hearOfConsole(this.#vm, () => this.#leaveIt());
    return () => {
      unhear();
      place.removeEventListener("paste", taken, { capture: true });
      unset();
      themes.disconnect();
      sizes.disconnect();
      this.#terminal = undefined;
      this.#search = undefined;
      terminal.dispose();
    };
  }

  focus(): void {
    this.#terminal?.focus();
  }

  /** Becomes the one that writes. Another tab leaves it; anybody else is told, and reads. */
  takeOver(): void {
    this.writing.become({ isLeft: false });
    void askForConsole(this.#vm).then(() => {
      this.#isTaking = true;
      this.link.connect(CONSOLE_TAKEN);
    });
  }

  /** Only looks, or writes if nobody else does. */
  look(isLook: boolean): void {
    if (this.#isLook === isLook) return;
    this.#isLook = isLook;
    this.writing.become({ isLeft: false });
    this.link.becomes(isLook ? CONSOLE_TO_READ : CONSOLE);
  }

  press(key: Key): void {
    this.#send(sentBy(key, this.#terminal?.modes.applicationCursorKeysMode === true));
    this.focus();
  }

  holdControl(): void {
    this.isControl.become(!this.isControl.state());
    this.focus();
  }

  /** Types a text as it is. */
  type(text: string): void {
    this.#send(text);
    this.focus();
  }

  /** Sends a copied text, or asks first if it would run something. */
  paste(text: string): void {
    if (!this.#isWriter || text === "") return;
    if (linesOf(text) > 0 || text.length > PASTE_MAX) this.asked.become({ what: "paste", text });
    else this.pasteNow(text);
  }

  pasteNow(text: string): void {
    const isBracketed = this.#terminal?.modes.bracketedPasteMode === true;
    this.#send(pasted(text, isBracketed));
    this.focus();
  }

  /** What is selected, or else all there is. */
  copied(isAll: boolean): string {
    const terminal = this.#terminal;
    if (terminal === undefined) return "";
    if (!isAll) return terminal.getSelection();
    const { active } = terminal.buffer;
    const lines = Array.from(
      { length: active.length },
      (_, line) => active.getLine(line)?.translateToString(true) ?? "",
    );
    return `${lines.join("\n").trimEnd()}\n`;
  }

  /** Finds a text above or below. Returns whether there is one. */
  find(text: string, isUp: boolean): boolean {
    const found = isUp ? this.#search?.findPrevious(text) : this.#search?.findNext(text);
    return found === true;
  }

  size(): { columns: number; rows: number } {
    return { columns: this.#terminal?.cols ?? 0, rows: this.#terminal?.rows ?? 0 };
  }

  /** Brings the terminal to its senses when a program has left it without. */
  reset(): void {
    this.#terminal?.reset();
    this.focus();
  }

  #opened(socket: WebSocket, { writer, recordedBytes, news }: Welcome): void {
    const terminal = this.#terminal;
    if (terminal === undefined) return;
    // A connection that is made again takes nothing from anybody.
    if (this.#isTaking) this.link.goesOnAs(CONSOLE);
    this.#isTaking = false;
    // The host says the last output again.
    terminal.reset();
    terminal.options.disableStdin = !writer;
    this.#socket = socket;
    this.#isWriter = writer;
    this.#news = news;
    if (writer) this.writing.become({ isLeft: false });
    this.#former = 0;
    const openedMs = performance.now();
    let recorded = recordedBytes ?? 0;
    const backlog = new Backlog((output, done) => terminal.write(output, done));
    const addFormer = (output: Uint8Array) => {
      backlog.add(output);
      this.#former += 1;
      terminal.write("", () => (this.#former -= 1));
    };
    socket.onmessage = ({ data }: MessageEvent<unknown>) => {
      if (!(data instanceof ArrayBuffer) || this.#socket !== socket) return;
      const output = new Uint8Array(data);
      if (recordedBytes === undefined) {
        if (performance.now() - openedMs > FORMER_MS) backlog.add(output);
        else addFormer(output);
        return;
      }
      if (recorded > 0) {
        const former = output.subarray(0, recorded);
        recorded -= former.length;
        addFormer(former);
        if (recorded === 0) terminal.write("", () => drawLine(terminal));
        if (former.length === output.length) return;
        backlog.add(output.subarray(former.length));
        return;
      }
      backlog.add(output);
    };
  }

  #ended(): void {
    this.#socket = undefined;
    this.#news = undefined;
    this.#stopsWriting();
  }

  #stopsWriting(): void {
    this.#isWriter = false;
    if (this.#terminal !== undefined) this.#terminal.options.disableStdin = true;
  }

  /** Takes a control string. A guest that says it does not know the text of this connection. */
  #hears(said: string): boolean {
    const by = readNews(said, this.#news);
    if (by === undefined || !this.#isWriter) return true;
    this.#stopsWriting();
    this.writing.become({ isLeft: false, takenBy: by });
    this.link.losesWriting();
    return true;
  }

  #leaveIt(): boolean {
    if (!this.#isWriter) return false;
    this.#isTaking = false;
    this.writing.become({ isLeft: true });
    this.link.connect(CONSOLE_TO_READ);
    return true;
  }

  #said(text: string): void {
    // What a program has asked for long ago would be typed into the one that runs now.
    if (this.#former > 0 && isReply(text)) return;
    if (!this.isControl.state()) {
      this.#send(text);
      return;
    }
    this.isControl.become(false);
    this.#send(withControl(text) ?? text);
  }

  #send(text: string): void {
    for (const piece of pieces(text)) this.#sendBytes(piece);
  }

  #sendBytes(bytes: Uint8Array<ArrayBuffer>): void {
    if (this.#isWriter && this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(bytes);
  }

  #askForLink(text: string): void {
    const url = safeLink(text);
    if (url !== undefined) this.asked.become({ what: "link", url });
  }

  /** Whether the terminal takes a key; the others are the page's or the browser's. */
  #takesKey(event: KeyboardEvent): boolean {
    const { ctrlKey, shiftKey, code, key, type } = event;
    if (ctrlKey && !shiftKey && key === "]") {
      if (type === "keydown") {
        event.preventDefault();
        this.#leave();
      }
      return false;
    }
    if (!ctrlKey || !shiftKey) return true;
    if (code === "KeyC") {
      if (type === "keydown") {
        event.preventDefault();
        void navigator.clipboard.writeText(this.copied(false));
      }
      return false;
    }
    if (code === "KeyF") {
      if (type === "keydown") {
        event.preventDefault();
        this.asked.become({ what: "find" });
      }
      return false;
    }
    // The browser pastes by it.
    return code !== "KeyV";
  }
}
