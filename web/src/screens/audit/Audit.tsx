import { addresses } from "../../app/addresses";
import { useParams } from "wouter";
import { Needs } from "../../session/Needs";
import { Nowhere } from "../../shell/Nowhere";
import { useTitle } from "../../shell/useTitle";
import { ScreenHead } from "../../ui/Panel";
import { Tabs } from "../../ui/Tabs";
import { IntegrityTab } from "./IntegrityTab";
import { LogTab } from "./LogTab";

export default function Audit() {
  const { tab = "" } = useParams<{ tab?: string }>();
  useTitle("Audit");
  if (tab !== "" && tab !== "integrity") return <Nowhere />;
  return (
    <>
      <ScreenHead title="Audit" />
      <Needs operation="access_log">
        <Tabs
          label="Parts of the audit"
          tabs={[
            { label: "Access log", to: addresses.audit },
            { label: "Verification and retention", to: addresses.integrity },
          ]}
        />
        {tab === "integrity" ? <IntegrityTab /> : <LogTab />}
      </Needs>
    </>
  );
}
