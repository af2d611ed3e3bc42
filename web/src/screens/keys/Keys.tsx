import { useParams } from "wouter";
import { addresses } from "../../app/addresses";
import { Nowhere } from "../../shell/Nowhere";
import { useTitle } from "../../shell/useTitle";
import { ScreenHead } from "../../ui/Panel";
import { Tabs } from "../../ui/Tabs";
import { KeysOfVms } from "./KeysOfVms";
import { Providers } from "./Providers";

export default function Keys() {
  const { tab = "" } = useParams<{ tab?: string }>();
  useTitle("Keys");
  if (tab !== "" && tab !== "vms") return <Nowhere />;
  return (
    <>
      <ScreenHead title="Keys" />
      <Tabs
        label="Parts of the keys"
        tabs={[
          { label: "Providers", to: addresses.keys },
          { label: "Keys of VMs", to: addresses.keysOfVms },
        ]}
      />
      {tab === "vms" ? <KeysOfVms /> : <Providers />}
    </>
  );
}
