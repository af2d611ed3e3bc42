/** The client's end of an upload: the host asks for bytes of the image, in this order. */

const READ = 0x52;
const END = 0x45;
const REASON = 0x58;
const HEAD_BYTES = 13;
/** The most bytes that a host asks for at once, and the longest reason that it gives. */
const QUESTION_BYTES_MAX = 2 ** 20;
const REASON_BYTES_MAX = 4096;

export type Question =
  | { is: "read"; offset: number; length: number }
  /** Nothing more is wanted. */
  | { is: "end" }
  /** The image is not taken. */
  | { is: "refused"; reason: string };

/** What a client says first: that it has an image of this size. */
export function offer(size: number): ArrayBuffer {
  const head = new ArrayBuffer(16);
  new Uint8Array(head).set(new TextEncoder().encode("SRIMAGE1"));
  new DataView(head).setBigUint64(8, BigInt(size), true);
  return head;
}

export class UnclearHost extends Error {}

/** Puts what arrives together to questions, wherever the messages are cut. */
export class Questions {
  readonly #size: number;
  #rest = new Uint8Array();

  constructor(size: number) {
    this.#size = size;
  }

  /** Takes a message; throws `UnclearHost` if it asks for what no image has. */
  take(message: ArrayBuffer): readonly Question[] {
    const all = new Uint8Array(this.#rest.length + message.byteLength);
    all.set(this.#rest);
    all.set(new Uint8Array(message), this.#rest.length);
    const questions: Question[] = [];
    let at = 0;
    for (;;) {
      const [question, length] = this.#first(all.subarray(at));
      if (question === undefined) break;
      questions.push(question);
      at += length;
    }
    this.#rest = all.slice(at);
    return questions;
  }

  #first(bytes: Uint8Array): [Question | undefined, number] {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    switch (bytes[0]) {
      case undefined:
        return [undefined, 0];
      case END:
        return [{ is: "end" }, 1];
      case REASON: {
        if (bytes.length < 5) return [undefined, 0];
        const length = view.getUint32(1, true);
        if (length > REASON_BYTES_MAX) throw new UnclearHost();
        if (bytes.length < 5 + length) return [undefined, 0];
        const reason = new TextDecoder().decode(bytes.subarray(5, 5 + length));
        return [{ is: "refused", reason }, 5 + length];
      }
      case READ: {
        if (bytes.length < HEAD_BYTES) return [undefined, 0];
        const offset = Number(view.getBigUint64(1, true));
        const length = view.getUint32(9, true);
        if (length === 0 || length > QUESTION_BYTES_MAX || offset + length > this.#size)
          throw new UnclearHost();
        return [{ is: "read", offset, length }, HEAD_BYTES];
      }
      default:
        throw new UnclearHost();
    }
  }
}

const DATA = new Uint8Array([0x44]);
const ZEROES = new Uint8Array([0x5a]);

/** The answer with these bytes, in its parts. */
export function answer(bytes: ArrayBuffer): readonly (ArrayBuffer | Uint8Array<ArrayBuffer>)[] {
  const words = new BigUint64Array(bytes, 0, Math.floor(bytes.byteLength / 8));
  const last = new Uint8Array(bytes, words.byteLength);
  const isZero = words.every((word) => word === 0n) && last.every((byte) => byte === 0);
  return isZero ? [ZEROES] : [DATA, bytes];
}

/** The answer that the image cannot be read. */
export function unreadable(reason: string): Uint8Array<ArrayBuffer> {
  const text = new TextEncoder().encode(reason).subarray(0, REASON_BYTES_MAX);
  const whole = new Uint8Array(5 + text.length);
  whole[0] = REASON;
  new DataView(whole.buffer).setUint32(1, text.length, true);
  whole.set(text, 5);
  return whole;
}
