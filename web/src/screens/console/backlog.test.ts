import { describe, expect, it } from "vitest";
import { Backlog } from "./backlog";

describe("the output of a fast guest", () => {
  it("takes no more room than there is, and says what is left out", () => {
    const written: (Uint8Array | string)[] = [];
    const done: (() => void)[] = [];
    const backlog = new Backlog((output, then) => {
      written.push(output);
      done.push(then);
    });
    const mib = new Uint8Array(1024 ** 2);
    for (let count = 0; count < 10; count += 1) backlog.add(mib);
    expect(written.length).toBe(4);
    done.shift()?.();
    expect(written.length).toBe(4);
    done.shift()?.();
    expect(written.length).toBe(5);
    expect(written[4]).toContain(`[${6 * 1024 ** 2} bytes are left out`);
    backlog.add(mib);
    expect(written.length).toBe(6);
  });
});
