import { useId, useState, type KeyboardEvent } from "react";
import { useLocation } from "wouter";
import { addresses } from "../app/addresses";
import { NAVIGATION } from "../app/screens";
import { useEstate } from "../live/useLive";
import type { VmSummary } from "../api/types";
import { Dialog } from "../ui/Dialog";
import { Icon, type IconName } from "../ui/Icon";
import { Power } from "../ui/Status";

const VMS_MAX = 12;

interface Hit {
  key: string;
  label: string;
  to: string;
  icon: IconName;
  vm?: VmSummary;
}

function hitsOf(text: string, vms: readonly VmSummary[]): readonly Hit[] {
  const wanted = text.trim().toLowerCase();
  const screens = [
    ...NAVIGATION.flatMap(({ entries }) => entries),
    { label: "Create a VM", to: addresses.newVm, icon: "plus" as const },
  ]
    .filter(({ label }) => label.toLowerCase().includes(wanted))
    .map(({ label, to, icon }): Hit => ({ key: to, label, to, icon }));
  if (wanted === "") return screens;
  const begins = (vm: VmSummary) => (vm.name.toLowerCase().startsWith(wanted) ? 0 : 1);
  const found = vms
    .filter(({ name, id }) => name.toLowerCase().includes(wanted) || id === wanted)
    .sort((one, other) => begins(one) - begins(other))
    .slice(0, VMS_MAX)
    .map((vm): Hit => ({ key: vm.id, label: vm.name, to: addresses.vm(vm.name), icon: "vm", vm }));
  return [...found, ...screens];
}

/** Goes to any VM or screen by a part of its name. */
export function Palette({ onClose }: { onClose: () => void }) {
  const id = useId();
  const [, go] = useLocation();
  const { vms } = useEstate();
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const hits = hitsOf(text, vms);
  const chosen = hits[Math.min(at, hits.length - 1)];

  const follow = (hit: Hit | undefined) => {
    if (hit === undefined) return;
    onClose();
    go(hit.to);
  };
  const pressed = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined && hits.length > 0) {
      event.preventDefault();
      setAt((now) => (Math.min(now, hits.length - 1) + step + hits.length) % hits.length);
    }
    if (event.key === "Enter") follow(chosen);
  };

  return (
    <Dialog title="Search" onClose={onClose} size="wide">
      <div className="palette">
        <input
          className="input"
          role="combobox"
          aria-label="VM or screen"
          aria-expanded={hits.length > 0}
          aria-controls={`${id}-hits`}
          aria-activedescendant={chosen === undefined ? undefined : `${id}-${chosen.key}`}
          aria-autocomplete="list"
          placeholder="A VM&rsquo;s name, or a screen"
          autoComplete="off"
          spellCheck={false}
          value={text}
          onChange={(event) => {
            setText(event.target.value);
            setAt(0);
          }}
          onKeyDown={pressed}
        />
        <div id={`${id}-hits`} role="listbox" aria-label="Found" className="palette-hits">
          {hits.map((hit) => (
            // The combobox has the focus and its keys; this is for the pointer.
            // eslint-disable-next-line jsx-a11y/click-events-have-key-events, jsx-a11y/interactive-supports-focus
            <div
              key={hit.key}
              id={`${id}-${hit.key}`}
              role="option"
              aria-selected={hit === chosen}
              className="palette-hit"
              onClick={() => follow(hit)}
            >
              <Icon name={hit.icon} />
              <span className="cut">{hit.label}</span>
              {hit.vm === undefined ? null : <Power power={hit.vm.power} />}
            </div>
          ))}
        </div>
        {hits.length === 0 ? <p className="soft">Nothing has this in its name.</p> : null}
      </div>
    </Dialog>
  );
}
