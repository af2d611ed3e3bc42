import { describe, expect, it } from "vitest";
import { Messages } from "./messages";

const STREAM =
  'id: 7\nevent: task.done\ndata: {"a":1}\n\n: still here\n\nevent: reset\ndata: {"oldest":5}\n\n';

describe("a stream of events", () => {
  it("is read wherever it is cut", () => {
    for (let cut = 0; cut <= STREAM.length; cut += 1) {
      const messages = new Messages();
      const read = [...messages.read(STREAM.slice(0, cut)), ...messages.read(STREAM.slice(cut))];
      expect(read).toEqual([
        { event: "task.done", id: "7", data: '{"a":1}' },
        { event: "reset", id: undefined, data: '{"oldest":5}' },
      ]);
    }
  });
});
