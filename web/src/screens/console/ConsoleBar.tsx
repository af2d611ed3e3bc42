import type { Vm } from "../../api/types";
import { FullScreenButton } from "../../guest/FullScreen";
import { useStore } from "../../lib/store";
import { Button } from "../../ui/Button";
import { Menu } from "../../ui/Menu";
import { say } from "../../ui/toasts";
import { changeFontSize, settings, switchReading } from "./settings";
import type { VmConsole } from "./vmConsole";

async function copy(text: string, what: string): Promise<void> {
  if (text === "") {
    say({ tone: "bad", text: "Nothing is selected" });
    return;
  }
  try {
    await navigator.clipboard.writeText(text);
    say({ tone: "good", text: what });
  } catch {
    say({ tone: "bad", text: "The browser does not let this page copy" });
  }
}

/** What can be done with a console. */
export function ConsoleBar({
  shown,
  vm,
  isLook,
  onLook,
}: {
  shown: VmConsole;
  vm: Vm;
  isLook: boolean;
  onLook: (isLook: boolean) => void;
}) {
  const state = useStore(shown.link.state);
  const { isRead } = useStore(settings);
  const refusal = state.is === "open" && state.writer ? undefined : "Nothing is typed now.";
  return (
    <div className="guest-bar-end">
      <Button why={refusal} onPress={() => shown.asked.become({ what: "paste", text: "" })}>
        Paste&hellip;
      </Button>
      <Button
        icon="copy"
        aria-label="Copy"
        onPress={() => void copy(shown.copied(false), "Copied")}
      >
        <span className="guest-word">Copy</span>
      </Button>
      <Button icon="search" aria-label="Find" onPress={() => shown.asked.become({ what: "find" })}>
        <span className="guest-word">Find</span>
      </Button>
      <Button aria-label={"A\u2212, smaller text"} onPress={() => changeFontSize(-1)}>
        A&minus;
      </Button>
      <Button aria-label="A+, larger text" onPress={() => changeFontSize(1)}>
        A+
      </Button>
      <Button onPress={() => onLook(!isLook)}>{isLook ? "Type" : "Look only"}</Button>
      <Menu
        label={`More for the console of ${vm.name}`}
        icon="more"
        choices={[
          {
            id: "copy",
            label: "Copy all output",
            choose: () => void copy(shown.copied(true), "All output is copied"),
          },
          {
            id: "size",
            label: "Type the window\u2019s size",
            hint: "A serial line has no size: stty tells the guest.",
            refusal,
            choose: () => {
              const { columns, rows } = shown.size();
              shown.type(`stty rows ${rows} columns ${columns}\r`);
            },
          },
          {
            id: "close",
            label: "Type Ctrl ]",
            refusal,
            choose: () => shown.type("\x1d"),
          },
          {
            id: "reset",
            label: "Reset the terminal",
            hint: "When its letters have become signs.",
            choose: () => shown.reset(),
          },
          {
            id: "read",
            label: isRead ? "Screen reader mode: on" : "Screen reader mode: off",
            hint: "Reads output as it comes.",
            choose: switchReading,
          },
        ]}
      />
      <FullScreenButton />
    </div>
  );
}
