import { useMemo, useState } from "react";
import type { Vm } from "../../api/types";
import { bytes, count, latency, plural } from "../../lib/units";
import { SelectField } from "../../ui/Field";
import { Empty, Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { Chart, type Series } from "./Chart";
import { loadOfAll, ratesOfAll, type Figure, type LoadFigure } from "./rates";
import { READ_EVERY_MS, useReadings } from "./useReadings";

const perSecond = (value: number) =>
  `${count(value < 10 ? Math.round(value * 10) / 10 : Math.round(value))}/s`;
const bytesPerSecond = (value: number) => `${bytes(Math.round(value))}/s`;

const CHARTS: readonly {
  title: string;
  unit: string;
  least: number;
  isBinary?: boolean;
  show: (value: number) => string;
  series: readonly Series<Figure>[];
}[] = [
  {
    title: "Operations",
    unit: "operations a second",
    least: 10,
    show: perSecond,
    series: [
      { label: "Read", figure: "readIops", colour: 1 },
      { label: "Written", figure: "writeIops", colour: 2 },
    ],
  },
  {
    title: "Throughput",
    unit: "bytes a second",
    least: 64 * 1024,
    isBinary: true,
    show: bytesPerSecond,
    series: [
      { label: "Read", figure: "readBytes", colour: 1 },
      { label: "Written", figure: "writeBytes", colour: 2 },
    ],
  },
  {
    title: "Latency of reads",
    unit: "time until the answer",
    least: 1e6,
    show: latency,
    series: [
      { label: "50th percentile", figure: "readP50", colour: 1 },
      { label: "99th percentile", figure: "readP99", colour: 3 },
    ],
  },
  {
    title: "Latency of writes",
    unit: "time until the answer",
    least: 1e6,
    show: latency,
    series: [
      { label: "50th percentile", figure: "writeP50", colour: 2 },
      { label: "99th percentile", figure: "writeP99", colour: 4 },
    ],
  },
];

const percent = (value: number) => `${count(Math.round(value))} %`;

const LOAD: readonly Series<LoadFigure>[] = [
  { label: "Ran", figure: "run", colour: 1 },
  { label: "Waited for the host", figure: "wait", colour: 3 },
];

export function PerformanceTab({ vm }: { vm: Vm }) {
  const [disk, setDisk] = useState("");
  if (vm.power !== "running" && vm.power !== "paused") {
    return (
      <Panel title="Performance">
        <Empty icon="event" title="It does not run">
          Its disks are counted from its start on: operations, bytes and latencies, as its guest
          sees them; and the time of its processors.
        </Empty>
      </Panel>
    );
  }
  return (
    <>
      <div className="filters">
        <SelectField
          label="Disks"
          value={disk}
          onChange={setDisk}
          options={[
            { value: "", label: "All together" },
            ...vm.disks.map(({ name }) => ({ value: name, label: name })),
          ]}
        />
      </div>
      <Charts vm={vm} disk={disk} />
    </>
  );
}

function Charts({ vm, disk }: { vm: Vm; disk: string }) {
  const { readings, problem } = useReadings(vm.name);
  const rates = useMemo(() => ratesOfAll(readings, disk), [readings, disk]);
  const load = useMemo(() => loadOfAll(readings), [readings]);
  const newest = readings.at(-1);
  if (newest === undefined)
    return problem === undefined ? <Waiting lines={6} /> : <ProblemNote problem={problem} />;
  const stalled = newest.disks.filter(
    (each) => each.stalled_ms > 0 && (disk === "" || each.disk === disk),
  );
  return (
    <>
      {problem === undefined ? null : <ProblemNote problem={problem} />}
      {stalled.map((each) => (
        <Note
          key={each.disk}
          tone="warning"
          title={`${each.disk} has completed nothing for ${latency(each.stalled_ms * 1e6)}`}
        />
      ))}
      <div className="halves">
        {newest.processors === undefined || newest.processors === null ? (
          <Panel title="Processors">
            <Empty icon="event" title="Its host does not say">
              A host of an earlier version, or whose kernel hides processes, does not count them.
            </Empty>
          </Panel>
        ) : (
          <Chart
            title="Processors"
            unit={`percent of ${plural(newest.processors.vcpus, "processor")}`}
            least={100}
            show={percent}
            series={LOAD}
            rates={load}
          />
        )}
        {CHARTS.map((chart) => (
          <Chart key={chart.title} {...chart} rates={rates} />
        ))}
      </div>
      <p className="small soft">
        Read from the host every {READ_EVERY_MS / 1000} s while this is open. A percentile is the
        upper bound of its bucket, at most a quarter too high. Processors are those of the whole VM.
      </p>
    </>
  );
}
