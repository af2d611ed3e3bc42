import licences from "../../api/generated/licences.txt?url";
import { useTitle } from "../../shell/useTitle";
import { CodeLine } from "../../ui/CodeLine";
import { Panel, ScreenHead } from "../../ui/Panel";

export default function About() {
  useTitle("About");
  return (
    <>
      <ScreenHead title="About" />
      <div className="grid">
        <Panel title="Strongroom">
          <div className="stack">
            <p>
              Virtual machines whose disks nobody but they can read. This page comes from the
              control plane, asks nobody else, and does what the command line does.
            </p>
            <p>
              Licensed under Apache-2.0.{" "}
              <a href={licences}>Licences of the packages in this page</a>
            </p>
          </div>
        </Panel>
        <Panel title="From a terminal">
          <div className="stack">
            <p>Each action here shows its command and its request. To sign in elsewhere:</p>
            <CodeLine
              label="Command"
              text={`strongroom login NAME --api ${location.origin} --api-ca api.crt`}
            />
            <CodeLine label="API" text={`curl --cacert api.crt ${location.origin}/openapi.json`} />
          </div>
        </Panel>
        <Panel title="Keys">
          <ul className="stack">
            <li>
              <kbd>Ctrl K</kbd> or <kbd>/</kbd> finds a VM or a screen
            </li>
            <li>
              <kbd>Up</kbd> <kbd>Down</kbd> move in the list of VMs, <kbd>Space</kbd> selects,{" "}
              <kbd>Enter</kbd> opens
            </li>
            <li>
              <kbd>Esc</kbd> closes a dialog
            </li>
          </ul>
        </Panel>
      </div>
    </>
  );
}
