import { Link, useParams } from "wouter";
import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { useEstate } from "../../live/useLive";
import { bytes, count, moment, plural } from "../../lib/units";
import { Needs } from "../../session/Needs";
import { Nowhere } from "../../shell/Nowhere";
import { useTitle } from "../../shell/useTitle";
import { Meter } from "../../ui/Meter";
import { Empty, Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Facts, Panel, ScreenHead } from "../../ui/Panel";
import { Mark, Power, SealMark, sealOf } from "../../ui/Status";
import { Table, type Column } from "../../ui/Table";
import type { Alarm, VmSummary } from "../../api/types";
import { AlarmLines } from "../alarms/AlarmLines";
import { cryptoState } from "./crypto";
import { CryptoMark } from "./CryptoMark";
import { HostTasks } from "./Evacuation";
import { HostActions } from "./HostActions";
import { HostMark } from "./HostMark";

type Host = Schemas["Host"];

/** Memory and what runs change without events. */
const EVERY_MS = 10_000;
const VMS_SHOWN = 50;

export default function HostScreen() {
  const { host: name = "" } = useParams<{ host: string }>();
  return (
    <Needs operation="host_show">
      <Found name={name} />
    </Needs>
  );
}

function Found({ name }: { name: string }) {
  const asked = useAsk("host_show", { path: { host: name } }, { everyMs: EVERY_MS });
  const host = asked.data;
  useTitle(host?.name ?? name);
  if (asked.error?.code === "not_found") return <Nowhere />;
  if (host === undefined) {
    return asked.error === null ? (
      <Waiting lines={8} label={`Loading ${name}`} />
    ) : (
      <ProblemNote problem={asked.error} retry={() => void asked.refetch()} />
    );
  }
  return <OneHost host={host} />;
}

function OneHost({ host }: { host: Host }) {
  const { vms } = useEstate();
  const own = vms.filter((vm) => vm.host === host.name);
  const alarms = useAsk("alarm_list", { query: { limit: 1000 } });
  const raised = (alarms.data?.items ?? []).filter(
    ({ object }) => object.kind === "host" && object.name === host.name,
  );
  return (
    <>
      <ScreenHead
        title={host.name}
        above={<Link href={addresses.hosts}>Hosts</Link>}
        beside={
          <>
            <HostMark host={host} />
            <CryptoMark state={host.crypto_safe} />
          </>
        }
        actions={<HostActions host={host} vms={own} />}
      />
      <Lost host={host} />
      <HostTasks host={host} vms={own} />
      {raised.length === 0 ? null : (
        <Panel title="Alarms" isFlush>
          <AlarmLines alarms={raised} />
        </Panel>
      )}
      <div className="halves">
        <div className="stack">
          <Room host={host} vms={own} />
          <Crypto host={host} />
          <ClockAndCertificate host={host} raised={raised} />
        </div>
        <div className="stack">
          <Processor host={host} />
          <Programs host={host} />
        </div>
      </div>
      <VmsOnIt host={host} vms={own} />
    </>
  );
}

function Lost({ host: { name, fenced, maintenance } }: { host: Host }) {
  if (fenced !== undefined && fenced !== null) {
    return (
      <Note tone="bad" title={`Declared lost on ${moment(fenced.at_unix_ms)}`}>
        {fenced.complete ? (
          <p>
            It is shut out from all its Ceph clusters, and its VMs there go elsewhere. Admit it once
            the machine has started again.
          </p>
        ) : (
          <p>
            It is not shut out from all its Ceph clusters yet and may still write. Declare it lost
            once more.
          </p>
        )}
      </Note>
    );
  }
  if (maintenance !== true) return null;
  return (
    <Note tone="warning" title={`${name} is in maintenance`}>
      <p>No VM is placed, started or restarted here. VMs that run go on.</p>
    </Note>
  );
}

function Room({ host, vms }: { host: Host; vms: readonly VmSummary[] }) {
  const { memory_bytes, memory_free_bytes, memory_placed_bytes = 0 } = host;
  const { operations_running, operations_waiting } = host;
  return (
    <Panel title="Room">
      <div className="stack">
        <Meter
          label="Memory used"
          used={memory_bytes - memory_free_bytes}
          total={memory_bytes}
          show={bytes}
        />
        <Meter
          label="Memory of all VMs that are placed here, on or off"
          used={memory_placed_bytes}
          total={memory_bytes}
          show={bytes}
          fullFrom={1}
        />
        <Facts
          facts={[
            {
              label: "VMs",
              value: `${count(vms.length)} placed here, ${count(host.vms_running)} running`,
            },
            {
              label: "Operations",
              value: `${count(operations_running)} in progress, ${count(operations_waiting)} waiting`,
            },
          ]}
        />
      </div>
    </Panel>
  );
}

function Crypto({ host: { crypto_safe, crypto_safe_reasons = [] } }: { host: Host }) {
  return (
    <Panel title="Whether memory can reach a disk" aside={<CryptoMark state={crypto_safe} />}>
      <div className="stack">
        <p>{cryptoState(crypto_safe).meaning}</p>
        {crypto_safe_reasons.length === 0 ? null : (
          <ul className="bullets">
            {crypto_safe_reasons.map((reason) => (
              <li key={reason}>{reason}</li>
            ))}
          </ul>
        )}
        <p className="soft small">
          <code>strongroom doctor</code> on the machine says more.
        </p>
      </div>
    </Panel>
  );
}

function ClockAndCertificate({ host, raised }: { host: Host; raised: readonly Alarm[] }) {
  const has = (kind: string) => raised.some((alarm) => alarm.kind === kind);
  const isConnected = host.state === "connected";
  return (
    <Panel title="Clock and certificate">
      <Facts
        facts={[
          {
            label: "Clock",
            value: has("clock_off") ? (
              <Mark tone="bad" shape="cross">
                More than 5 s from the control plane&rsquo;s
              </Mark>
            ) : isConnected ? (
              <Mark tone="good" shape="tick">
                Within 5 s of the control plane&rsquo;s
              </Mark>
            ) : (
              "not known while it does not answer"
            ),
          },
          {
            label: "Certificate",
            value: isConnected ? (
              <Mark tone="good" shape="tick">
                Valid, renewed by itself
              </Mark>
            ) : (
              "not known while it does not answer; the alarm host_down says if it has ended"
            ),
          },
          { label: "Address", value: host.address ?? "the control plane\u2019s own machine" },
          { label: "Version", value: host.version ?? "unknown" },
          { label: "Id", value: <code>{host.id}</code> },
        ]}
      />
    </Panel>
  );
}

function Processor({ host }: { host: Host }) {
  const { capabilities, processor_lacks = [] } = host;
  const vendor = capabilities?.vendor;
  return (
    <Panel title="Processor">
      <div className="stack">
        <Facts
          facts={[
            { label: "Model", value: host.cpu_model ?? "unknown" },
            { label: "Processors", value: host.cpus === 0 ? "unknown" : count(host.cpus) },
            typeof vendor === "string" ? { label: "Maker", value: vendor } : undefined,
            {
              label: "Guests run with",
              value:
                host.accelerator === "tcg"
                  ? "tcg: emulation, because the machine has no KVM; slow"
                  : (host.accelerator ?? "unknown"),
            },
          ]}
        />
        {processor_lacks.length === 0 ? null : (
          <Note tone="warning" title="It cannot give everything that VMs or policies demand">
            {processor_lacks.map(({ what, message }) => (
              <p key={what}>
                <code>{what}</code> {message}
              </p>
            ))}
          </Note>
        )}
        {capabilities === undefined || capabilities === null ? null : (
          <>
            <Words title="Processors that guests can have" words={capabilities.processors} />
            <Words title="Features of its own" words={capabilities.features} />
            <Words title="Machine types" words={capabilities.machine_types} />
          </>
        )}
      </div>
    </Panel>
  );
}

function Words({ title, words }: { title: string; words: readonly string[] }) {
  return (
    <details className="what">
      <summary>
        {title}: {count(words.length)}
      </summary>
      <p className="tags words-list">
        {words.map((word) => (
          <span key={word} className="tag">
            {word}
          </span>
        ))}
      </p>
    </details>
  );
}

function Programs({ host: { programs, boot_directories = [] } }: { host: Host }) {
  const shown = (path: string | null | undefined, without: string) =>
    typeof path === "string" ? <code>{path}</code> : <span className="soft">{without}</span>;
  const version = programs?.qemu_version;
  return (
    <Panel title="Programs">
      <Facts
        facts={[
          {
            label: "QEMU",
            value: (
              <>
                {shown(programs?.qemu, "not installed: no VM starts here")}
                {typeof version === "string" ? ` ${version}` : ""}
              </>
            ),
          },
          { label: "UEFI", value: shown(programs?.uefi, "not installed: BIOS only") },
          { label: "swtpm", value: shown(programs?.swtpm, "not installed: no TPMs") },
          { label: "passt", value: shown(programs?.passt, "not installed: no network user") },
          {
            label: "Boot files",
            value:
              boot_directories.length === 0
                ? "no directory may hold kernels or CD-ROM images"
                : boot_directories.map((directory) => <code key={directory}>{directory} </code>),
          },
        ]}
      />
    </Panel>
  );
}

function VmsOnIt({ host, vms }: { host: Host; vms: readonly VmSummary[] }) {
  const all = `${addresses.vms}?host=${encodeURIComponent(host.name)}`;
  return (
    <Panel
      title={plural(vms.length, "VM")}
      isFlush
      aside={vms.length === 0 ? null : <Link href={all}>In the list of VMs</Link>}
    >
      {vms.length === 0 ? (
        <Empty icon="vm" title="No VM is placed here">
          New VMs are placed on the host with the most memory left.
        </Empty>
      ) : (
        <Table
          label={`VMs of ${host.name}`}
          columns={VMS}
          rows={vms.slice(0, VMS_SHOWN)}
          keyOf={({ id }) => id}
        />
      )}
      {vms.length > VMS_SHOWN ? (
        <p className="panel-line soft">and {count(vms.length - VMS_SHOWN)} more</p>
      ) : null}
    </Panel>
  );
}

const VMS: readonly Column<VmSummary>[] = [
  { name: "Name", cell: ({ name }) => <Link href={addresses.vm(name)}>{name}</Link> },
  { name: "State", cell: ({ power }) => <Power power={power} /> },
  { name: "Protection", cell: (vm) => <SealMark seal={sealOf(vm)} /> },
  { name: "Memory", isNumber: true, cell: ({ memory_bytes }) => bytes(memory_bytes) },
];
