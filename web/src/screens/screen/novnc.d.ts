// What this page uses of noVNC (docs/API.md of the package).
declare module "@novnc/novnc" {
  interface Events {
    connect: CustomEvent;
    disconnect: CustomEvent<{ clean: boolean }>;
    securityfailure: CustomEvent<{ status: number; reason?: string }>;
    credentialsrequired: CustomEvent<{ types: string[] }>;
    clipboard: CustomEvent<{ text: string }>;
  }

  export default class RFB {
    constructor(target: HTMLElement, channel: WebSocket, options?: { shared?: boolean });
    viewOnly: boolean;
    scaleViewport: boolean;
    clipViewport: boolean;
    background: string;
    showDotCursor: boolean;
    addEventListener<Name extends keyof Events>(
      name: Name,
      listener: (event: Events[Name]) => void,
    ): void;
    disconnect(): void;
    focus(options?: FocusOptions): void;
    blur(): void;
    sendKey(keysym: number, code: string | null, down?: boolean): void;
    clipboardPasteFrom(text: string): void;
  }
}
