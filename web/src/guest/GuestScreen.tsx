import type { ComponentType, ReactNode } from "react";
import { Link, useParams } from "wouter";
import { useAsk } from "../api/ask";
import type { Vm } from "../api/types";
import { addresses } from "../app/addresses";
import { Nowhere } from "../shell/Nowhere";
import { useTitle } from "../shell/useTitle";
import { Empty, ProblemNote, Waiting } from "../ui/Notes";
import { ScreenHead } from "../ui/Panel";
import { Tabs } from "../ui/Tabs";
import { Power } from "../ui/Status";
import { useLook } from "./look";
import "./guest.css";

interface Props {
  what: "Console" | "Screen";
  Part: ComponentType<{ vm: Vm }>;
}

/** The screen of the page on which a guest is seen. */
export function GuestScreen({ what, Part }: Props) {
  const { vm: name = "" } = useParams<{ vm: string }>();
  const [isLook] = useLook();
  const asked = useAsk("vm_show", { path: { vm: name } });
  const vm = asked.data;
  useTitle(`${what} of ${vm?.name ?? name}`);
  if (asked.error?.code === "not_found") return <Nowhere />;
  if (vm === undefined) {
    return asked.error === null ? (
      <Waiting lines={8} label={`Loading ${name}`} />
    ) : (
      <ProblemNote problem={asked.error} retry={() => void asked.refetch()} />
    );
  }
  return (
    <>
      <ScreenHead
        title={`${what} of ${vm.name}`}
        above={
          <>
            <Link href={addresses.vms}>VMs</Link> /{" "}
            <Link href={addresses.vm(vm.name)}>{vm.name}</Link>
          </>
        }
        beside={<Power power={vm.power} />}
      />
      <Tabs
        label={`What ${vm.name} shows`}
        tabs={[
          { label: "Console", to: addresses.guest(vm.name, "console", isLook) },
          { label: "Screen", to: addresses.guest(vm.name, "screen", isLook) },
        ]}
      />
      {vm.browser_console_denied === true ? (
        <Empty icon="policy" title={`The policy of ${vm.name} refuses it to browsers`}>
          <p>
            <code>{`strongroom vm ${what.toLowerCase()} ${vm.name}`}</code> goes to its host
            directly.
          </p>
        </Empty>
      ) : (
        <Part key={vm.id} vm={vm} />
      )}
    </>
  );
}

/** What a person who looks at a guest in a browser ought to know. */
export function PlainTextNote({ command, record }: { command: string; record: string }): ReactNode {
  return (
    <p className="small soft">
      What passes here is plain text to one process on the control plane&rsquo;s machine, which has
      no keys. <code>{command}</code> goes to the host directly. Each opening is on record as{" "}
      <code>{record}</code>.
    </p>
  );
}
