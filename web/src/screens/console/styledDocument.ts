import type { Terminal } from "@xterm/xterm";

/** The nonce under which the page's policy permits style elements. */
function styleNonce(): string {
  return document.querySelector<HTMLMetaElement>("meta[name=style-nonce]")?.content ?? "";
}

/** What is not public of the terminal, as it is in the version that package-lock.json names. */
interface Innards {
  _core?: {
    _renderService?: { _renderer?: { value?: { _rowFactory?: { _document?: Document } } } };
  };
}

/**
 * Gives the terminal's rows the document that the terminal has. They take the page's own whatever
 * the terminal was told, and colour letters by style attributes.
 */
export function styleRows(terminal: Terminal): void {
  const rows = (terminal as unknown as Innards)._core?._renderService?._renderer?.value
    ?._rowFactory;
  if (rows?._document === undefined) throw new Error("the terminal is made in another way");
  rows._document = styledDocument();
}

/**
 * The document as the terminal is to see it, under a policy that permits neither style elements
 * without a nonce nor style attributes: the former get the nonce, and the latter are set as
 * properties, which the policy permits.
 */
export function styledDocument(): Document {
  const nonce = styleNonce();
  const createElement = (name: string): HTMLElement => {
    const element = document.createElement(name);
    if (element instanceof HTMLStyleElement) element.nonce = nonce;
    const setAttribute = element.setAttribute.bind(element);
    element.setAttribute = (attribute: string, value: string) => {
      if (attribute === "style") element.style.cssText = value;
      else setAttribute(attribute, value);
    };
    return element;
  };
  return new Proxy(document, {
    get: (real, name) => {
      if (name === "createElement") return createElement;
      const value: unknown = Reflect.get(real, name, real);
      return typeof value === "function" ? (value.bind(real) as unknown) : value;
    },
    set: (real, name, value) => Reflect.set(real, name, value, real),
  });
}
