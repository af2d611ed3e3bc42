import { useId } from "react";

interface Props {
  label: string;
  used: number;
  total: number;
  show: (value: number) => string;
  /** From which share on it is called full. */
  fullFrom?: number;
}

/** How much of something is used. */
export function Meter({ label, used, total, show, fullFrom = 0.9 }: Props) {
  const id = useId();
  const share = total > 0 ? Math.min(1, used / total) : 0;
  return (
    <div className="meter">
      <div className="meter-words">
        <span id={id}>{label}</span>
        <span className="number soft">
          {show(used)} of {show(total)}
        </span>
      </div>
      <div
        role="meter"
        aria-labelledby={id}
        aria-valuenow={Math.round(share * 100)}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuetext={`${show(used)} of ${show(total)}`}
        className={share >= fullFrom ? "meter-bar meter-bar-full" : "meter-bar"}
      >
        <span style={{ width: `${share * 100}%` }} />
      </div>
    </div>
  );
}
