/** Output that may wait for the terminal, in bytes. A guest is faster than any terminal. */
const WAITING_MAX = 4 * 1024 ** 2;

/** Output on its way into a terminal, of which there is never more than the page has room for. */
export class Backlog {
  #waiting = 0;
  #lost = 0;

  constructor(private readonly write: (output: Uint8Array | string, done: () => void) => void) {}

  add(output: Uint8Array): void {
    if (this.#waiting + output.length > WAITING_MAX) {
      this.#lost += output.length;
      return;
    }
    this.#pass(output, output.length);
  }

  #pass(output: Uint8Array | string, length: number): void {
    this.#waiting += length;
    this.write(output, () => {
      this.#waiting -= length;
      if (this.#lost === 0 || this.#waiting > WAITING_MAX / 2) return;
      // CAN ends a sequence that is cut in its middle.
      const note = `\x18\x1b[0m\r\n[${this.#lost} bytes are left out: they came too fast]\r\n`;
      this.#lost = 0;
      this.#pass(note, note.length);
    });
  }
}
