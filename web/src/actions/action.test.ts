import { describe, expect, it } from "vitest";
import { EMPTY } from "../screens/create/draft";
import { createVm } from "../screens/create/creation";
import { commandLine, curlLine, quoted } from "./action";
import { power } from "./power";
import { addDisk, createSnapshot, limitVm, migrate, revert, rotateKey } from "./vm";

const vm = { name: "web1" };

describe("a command line", () => {
  it("quotes what a shell would change", () => {
    expect(quoted("web1")).toBe("web1");
    expect(quoted("it's $HOME")).toBe(`'it'\\''s $HOME'`);
    expect(quoted("")).toBe("''");
    expect(quoted("a;b")).toBe("'a;b'");
  });

  it("is what the request does", () => {
    expect(commandLine(power.stop(vm, { force: true, timeoutS: undefined }))).toBe(
      "strongroom vm stop web1 --force",
    );
    expect(commandLine(power.stop(vm, { force: false, timeoutS: 30 }))).toBe(
      "strongroom vm stop web1 --timeout 30",
    );
    expect(commandLine(createSnapshot(vm, { name: "a", memory: true, quiesceS: 30 }))).toBe(
      "strongroom vm snapshot create web1 a --memory --quiesce-within 30s",
    );
    const others = { name: "a", memory: false, quiesceS: undefined, with: [{ name: "db1" }] };
    expect(commandLine(createSnapshot(vm, others))).toBe(
      "strongroom vm snapshot create web1 a --with db1",
    );
    expect(createSnapshot(vm, others).request.body).toEqual({ name: "a", with: ["db1"] });
    expect(commandLine(addDisk(vm, { size: 2 ** 31, isSwap: true, integrity: false }))).toBe(
      "strongroom vm disk add web1 --size 2G --swap",
    );
    expect(commandLine(rotateKey(vm, { provider: "hsm", data: true }))).toBe(
      "strongroom vm key rotate web1 --key-provider hsm --data",
    );
    expect(commandLine(migrate(vm, { host: "hall2", datastore: undefined, pauseMs: 100 }))).toBe(
      "strongroom vm migrate web1 --to hall2 --pause-ms 100",
    );
    expect(commandLine(limitVm(vm, {}))).toBe("strongroom vm limit web1 --none");
  });

  it("discards nothing that is kept", () => {
    const kept = revert(vm, {
      snapshot: "a",
      keepAs: "now",
      isKept: true,
      disksOnly: false,
      tpm: false,
    });
    expect(kept.request.body).toEqual({ keep_as: "now" });
    expect(commandLine(kept)).toBe("strongroom vm snapshot revert web1 a --keep-as now");
    const lost = revert(vm, {
      snapshot: "a",
      keepAs: "now",
      isKept: false,
      disksOnly: false,
      tpm: false,
    });
    expect(lost.request.body).toEqual({ discard: true });
    expect(commandLine(lost)).toBe("strongroom vm snapshot revert web1 a --discard --yes");
  });

  it("makes the VM of a draft", () => {
    const made = createVm({
      ...EMPTY,
      name: "web1",
      tags: "env=prod tier",
      notes: "two words",
      hasTags: true,
      network: "",
    });
    expect(commandLine(made)).toBe(
      "strongroom vm create web1 --cpus 2 --memory 2G --disk 20G --integrity --net none --tag env=prod --tag tier --notes 'two words'",
    );
    expect(made.request.body).toMatchObject({
      memory_bytes: 2 * 1024 ** 3,
      disks: [{ size_bytes: 20 * 1024 ** 3, integrity: true }],
      nics: [],
    });
  });
});

describe("a curl line", () => {
  it("has the method, the address and the body, and no token", () => {
    const line = curlLine(
      power.stop({ name: "a b" }, { force: true, timeoutS: undefined }),
      "https://h:5690",
    );
    expect(line).toBe(
      `curl --cacert api.crt -H "Authorization: Bearer $(cat token)" -X POST -H 'Content-Type: application/json' -d '{"force":true}' https://h:5690/v1/vms/a%20b/stop`,
    );
  });
});
