import { Component, type ReactNode } from "react";
import { asProblem, type Problem } from "../api/problem";
import { ProblemNote } from "../ui/Notes";

interface State {
  problem?: Problem;
}

/** A screen that fails leaves the others usable. */
export class ScreenBoundary extends Component<{ children: ReactNode }, State> {
  override state: State = {};

  static getDerivedStateFromError(error: unknown): State {
    return { problem: asProblem(error) };
  }

  override render(): ReactNode {
    const { problem } = this.state;
    if (problem === undefined) return this.props.children;
    return <ProblemNote problem={problem} retry={() => location.reload()} />;
  }
}
