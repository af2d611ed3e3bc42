import { bytes } from "../../lib/units";
import { Chart } from "../vm/Chart";
import type { Pass } from "./passing";

const RATES = [
  { label: "Sent", figure: "sent", colour: 1 },
  { label: "Changed by the guest", figure: "changed", colour: 3 },
] as const;
const LEFT = [{ label: "Remaining", figure: "left", colour: 2 }] as const;
const LEAST = 1024 ** 2;

const perSecond = (value: number) => `${bytes(Math.round(value))}/s`;

/** The rates of a move and what remains of it, over time. */
export default function PassingCharts({ passes }: { passes: readonly Pass[] }) {
  return (
    <div className="halves">
      <Chart
        title="Memory on its way"
        unit="bytes a second"
        show={perSecond}
        isBinary
        least={LEAST}
        series={RATES}
        rates={passes}
      />
      <Chart
        title="Memory that remains"
        unit="bytes"
        show={bytes}
        isBinary
        least={LEAST}
        series={LEFT}
        rates={passes}
      />
    </div>
  );
}
