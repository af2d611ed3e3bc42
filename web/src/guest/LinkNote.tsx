import { misfit, power as powerAction } from "../actions/power";
import { useRun } from "../actions/run";
import type { Vm } from "../api/types";
import { capital } from "../lib/words";
import { useStore } from "../lib/store";
import { useRefusal } from "../session/useMe";
import { Button } from "../ui/Button";
import { Note, ProblemNote } from "../ui/Notes";
import { Prose } from "../ui/Prose";
import { Mark, powerWord } from "../ui/Status";
import { useNow } from "../ui/When";
import type { GuestLink, LinkState } from "./link";
import { isReachable } from "./powered";

/** The state of a connection in two words. */
export function LinkMark({ link, vm }: { link: GuestLink; vm: Vm }) {
  const state = useStore(link.state);
  return (
    <span role="status">
      <StateMark state={state} vm={vm} />
    </span>
  );
}

function StateMark({ state, vm }: { state: LinkState; vm: Vm }) {
  switch (state.is) {
    case "closed":
      return (
        <Mark tone="off" shape="ring">
          {isReachable(vm.power) ? "Not connected" : `VM is ${powerWord(vm.power).toLowerCase()}`}
        </Mark>
      );
    case "connecting":
      return (
        <Mark tone="notice" shape="half">
          Connecting
        </Mark>
      );
    case "open":
      return state.writer ? (
        <Mark tone="good" shape="disc">
          Connected
        </Mark>
      ) : (
        <Mark tone={state.isLook ? "notice" : "warning"} shape="bars">
          Looking only
        </Mark>
      );
    case "lost":
      return (
        <Mark tone="bad" shape="cross">
          Connection lost
        </Mark>
      );
    case "refused":
      return (
        <Mark tone="bad" shape="cross">
          Not connected
        </Mark>
      );
  }
}

/** Why there is no connection, and what to do. */
export function LinkNote({ link, vm }: { link: GuestLink; vm: Vm }) {
  const state = useStore(link.state);
  if (!isReachable(vm.power)) return <OffNote vm={vm} />;
  if (state.is === "refused")
    return <ProblemNote problem={state.problem} retry={() => link.connect()} />;
  return state.is === "lost" ? <LostNote state={state} retry={() => link.connect()} /> : null;
}

function LostNote({
  state: { problem, untilMs },
  retry,
}: {
  state: Extract<LinkState, { is: "lost" }>;
  retry: () => void;
}) {
  useNow();
  const at = new Date(untilMs).toLocaleTimeString("en-GB");
  return (
    <div className="guest-lost">
      <Note tone="warning" title={capital(problem.message)}>
        {problem.nextStep === undefined ? null : (
          <p>
            <Prose text={capital(problem.nextStep)} />
          </p>
        )}
        <p className="small soft">
          It is tried again at {at}
          {problem.request === undefined ? null : (
            <>
              ; request <code>{problem.request}</code>
            </>
          )}
        </p>
      </Note>
      <Button onPress={retry}>Try now</Button>
    </div>
  );
}

function OffNote({ vm }: { vm: Vm }) {
  const refusal = useRefusal();
  const run = useRun();
  const why =
    misfit("start", vm, powerWord(vm.power)) ??
    refusal("vm_start", { vm: { ...vm, folder: vm.folder ?? null } });
  const isStarting = vm.power === "starting";
  return (
    <div className="guest-lost">
      <Note title={`${vm.name} is ${powerWord(vm.power).toLowerCase()}`}>
        <p>
          {isStarting
            ? "It is shown here as soon as it runs."
            : "It is shown here when it runs; its recorded output is read by "}
          {isStarting ? null : <code>{`strongroom vm console ${vm.name} --history`}</code>}
        </p>
        {why === undefined || isStarting ? null : <p className="small soft">{why}</p>}
      </Note>
      {isStarting ? null : (
        <Button
          look="primary"
          icon="play"
          why={why}
          onPress={() => void run([powerAction.start(vm)])}
        >
          Start
        </Button>
      )}
    </div>
  );
}
