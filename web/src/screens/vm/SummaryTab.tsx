import { Link } from "wouter";
import type { Schemas, Vm } from "../../api/types";
import { addresses } from "../../app/addresses";
import { bytes, count, moment, plural } from "../../lib/units";
import { capital, sentence } from "../../lib/words";
import { Facts, Panel } from "../../ui/Panel";
import { Prose } from "../../ui/Prose";
import { Mark, powerWord } from "../../ui/Status";
import { When } from "../../ui/When";
import { NetworkPanel } from "./NetworkPanel";

const MS = 1_000;

export function SummaryTab({ vm }: { vm: Vm }) {
  return (
    <div className="halves">
      <div className="stack">
        <StatePanel vm={vm} />
        <PolicyPanel vm={vm} />
        <AboutPanel vm={vm} />
      </div>
      <div className="stack">
        <HardwarePanel vm={vm} />
        <NetworkPanel vm={vm} />
      </div>
    </div>
  );
}

function StatePanel({ vm }: { vm: Vm }) {
  const {
    power,
    desired,
    since_unix_seconds: since,
    host,
    datastore,
    generation,
    restart,
    suspended,
    migration,
  } = vm;
  return (
    <Panel title="State">
      <Facts
        facts={[
          {
            label: "State",
            value: (
              <>
                {powerWord(power)}
                {typeof since === "number" ? (
                  <>
                    {" since "}
                    {moment(since * MS)}
                  </>
                ) : null}
              </>
            ),
          },
          { label: "Wanted", value: desired === "stopped" ? "Off" : capital(desired) },
          { label: "Host", value: host ?? "none" },
          { label: "Datastore", value: datastore },
          { label: "Starts", value: count(generation) },
          { label: "After a crash", value: restart === "never" ? "Stays off" : "Is started again" },
          typeof suspended?.bytes === "number"
            ? { label: "Saved memory", value: `${bytes(suspended.bytes)}, sealed` }
            : undefined,
          migration === undefined
            ? undefined
            : {
                label: "Memory on its way",
                value:
                  migration === "disabled" ? "Passes in plain text" : `Encrypted (${migration})`,
              },
        ]}
      />
    </Panel>
  );
}

function PolicyPanel({ vm: { policy, deviations = [] } }: { vm: Vm }) {
  return (
    <Panel title="Policy">
      <div className="stack">
        {typeof policy === "string" ? (
          <p>
            {deviations.length === 0 ? (
              <Mark tone="good" shape="tick">
                Keeps <strong>{policy}</strong>
              </Mark>
            ) : (
              <Mark tone="bad" shape="triangle">
                Deviates from {policy} in {plural(deviations.length, "point")}
              </Mark>
            )}
          </p>
        ) : (
          <p className="soft">
            It has no policy: nothing beyond its own settings is demanded of it.
          </p>
        )}
        {deviations.map(({ rule, disk, message, next_step }) => (
          <div key={`${rule} ${disk ?? ""}`} className="note note-warning">
            <div className="note-words">
              <p className="note-title">
                <Prose text={sentence(message)} />
              </p>
              <p>
                <Prose text={sentence(next_step)} />
              </p>
            </div>
          </div>
        ))}
      </div>
    </Panel>
  );
}

function AboutPanel({ vm }: { vm: Vm }) {
  const {
    id,
    name,
    notes,
    tags = [],
    folder,
    origin,
    linked_clones: clones = [],
    created_unix_seconds: created,
    directory,
  } = vm;
  return (
    <Panel title="About it">
      <Facts
        facts={[
          {
            label: "Notes",
            value: (
              <span className="lines-kept">
                {notes === undefined || notes === "" ? "none" : notes}
              </span>
            ),
          },
          {
            label: "Tags",
            value:
              tags.length === 0 ? (
                "none"
              ) : (
                <span className="tags">
                  {tags.map((tag) => (
                    <Link
                      key={tag}
                      href={`${addresses.vms}?q=${encodeURIComponent(tag)}`}
                      className="tag"
                    >
                      {tag}
                    </Link>
                  ))}
                </span>
              ),
          },
          { label: "Folder", value: folder ?? "none" },
          {
            label: "Access",
            value: <Link href={addresses.readersOf(name)}>Who could read what it has</Link>,
          },
          {
            label: "Made",
            value: (
              <>
                {moment(created * MS)}, <When ms={created * MS} />
              </>
            ),
          },
          origin === undefined || origin === null
            ? undefined
            : {
                label: origin.linked ? "Linked clone of" : "Clone of",
                value:
                  origin.is_gone === true ? (
                    `${origin.name}, which is gone`
                  ) : (
                    <Link href={addresses.vm(origin.name)}>{origin.name}</Link>
                  ),
              },
          clones.length === 0
            ? undefined
            : {
                label: "Linked clones",
                value: (
                  <span className="tags">
                    {clones.map((clone) => (
                      <Link key={clone} href={addresses.vm(clone)}>
                        {clone}
                      </Link>
                    ))}
                  </span>
                ),
              },
          typeof directory === "string" ? { label: "Directory", value: directory } : undefined,
          { label: "Id", value: <code>{id}</code> },
        ]}
      />
    </Panel>
  );
}

function HardwarePanel({ vm }: { vm: Vm }) {
  const { sockets = 1, cores = 1, threads = 1 } = vm.topology;
  return (
    <Panel title="Hardware">
      <Facts
        facts={[
          {
            label: "Processors",
            value: `${count(vm.cpus)} (${plural(sockets, "socket")}, ${plural(cores, "core")}, ${plural(threads, "thread")})`,
          },
          { label: "Processor", value: vm.processor ?? "host" },
          { label: "Memory", value: bytes(vm.memory_bytes) },
          typeof vm.growth?.max_memory_bytes === "number"
            ? { label: "Grows to", value: bytes(vm.growth.max_memory_bytes) }
            : undefined,
          { label: "Disks", value: `${plural(vm.disks.length, "disk")}, ${bytes(vm.disk_bytes)}` },
          { label: "Limit", value: limitInWords(vm.limits) },
          { label: "Boots", value: bootInWords(vm.boot) },
          {
            label: "CD-ROM",
            value: vm.cdrom?.type === "image" ? <code>{vm.cdrom.path}</code> : "none",
          },
          { label: "Firmware", value: vm.firmware === "uefi" ? "UEFI" : "BIOS" },
          { label: "Board", value: vm.machine_type ?? vm.machine ?? "" },
          { label: "TPM", value: vm.tpm ? "2.0, its state is sealed" : "none" },
          { label: "Screen", value: vm.vnc === true ? "yes" : "none" },
          { label: "Guest agent", value: vm.guest_agent === true ? "has a channel" : "none" },
          { label: "cloud-init", value: vm.seed === true ? "has a seed" : "none" },
        ]}
      />
    </Panel>
  );
}

export function limitInWords(limits: Schemas["IoLimits"] | undefined): string {
  const iops = limits?.iops?.per_second;
  const rate = limits?.bandwidth?.bytes_per_second;
  const parts = [
    typeof iops === "number" ? `${count(iops)} operations/s` : "",
    typeof rate === "number" ? `${bytes(rate)}/s` : "",
  ];
  const named = parts.filter((part) => part !== "");
  return named.length === 0 ? "none" : named.join(", ");
}

function bootInWords(boot: Schemas["Boot"]): string {
  if (boot.type === "kernel") return `the kernel ${boot.kernel}`;
  return boot.order === undefined || boot.order.length === 0
    ? "from its disks"
    : `from ${boot.order.join(", ")}`;
}
