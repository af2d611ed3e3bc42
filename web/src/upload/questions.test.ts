import { expect, it } from "vitest";
import { answer, offer, Questions, UnclearHost, unreadable } from "./questions";

const SIZE = 3 * 2 ** 20;

function read(offset: number | bigint, length: number): Uint8Array {
  const question = new Uint8Array(13);
  const view = new DataView(question.buffer);
  question[0] = 0x52;
  view.setBigUint64(1, BigInt(offset), true);
  view.setUint32(9, length, true);
  return question;
}

it("questions are put together wherever they are cut", () => {
  const all = [...read(0, 2 ** 20), ...read(SIZE - 5, 5), 0x45];
  for (const cut of [1, 5, 13, 14, 26]) {
    const questions = new Questions(SIZE);
    const parts = [all.slice(0, cut), all.slice(cut)];
    const asked = parts.flatMap((part) => questions.take(new Uint8Array(part).buffer));
    expect(asked).toEqual([
      { is: "read", offset: 0, length: 2 ** 20 },
      { is: "read", offset: SIZE - 5, length: 5 },
      { is: "end" },
    ]);
  }
});

it("a host that asks for what the image has not is not answered", () => {
  const beyond = [read(SIZE, 1), read(2n ** 64n - 1n, 1), read(0, 0), read(0, 2 ** 20 + 1)];
  for (const question of [...beyond, new Uint8Array([0x51])]) {
    const take = () => new Questions(SIZE).take(new Uint8Array(question).buffer);
    expect(take).toThrow(UnclearHost);
  }
});

it("a refusal is read whole, and never a long one", () => {
  const refusal = unreadable("it is another image");
  const questions = new Questions(SIZE);
  expect(questions.take(refusal.slice(0, 9).buffer)).toEqual([]);
  expect(questions.take(refusal.slice(9).buffer)).toEqual([
    { is: "refused", reason: "it is another image" },
  ]);
  const long = new Uint8Array([0x58, 0xff, 0xff, 0, 0]);
  expect(() => new Questions(SIZE).take(long.buffer)).toThrow(UnclearHost);
});

it("zeroes are one byte, and the offer says the size", () => {
  const length = (bytes: ArrayBuffer) =>
    answer(bytes).reduce((sum, part) => sum + part.byteLength, 0);
  expect(length(new ArrayBuffer(1000))).toBe(1);
  const last = new Uint8Array(1001);
  last[1000] = 1;
  expect(length(last.buffer)).toBe(1002);
  expect([...new Uint8Array(offer(258))]).toEqual([
    ...new TextEncoder().encode("SRIMAGE1"),
    ...[2, 1, 0, 0, 0, 0, 0, 0],
  ]);
});
