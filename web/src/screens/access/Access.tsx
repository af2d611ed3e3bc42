import type { ComponentType } from "react";
import { useParams } from "wouter";
import { addresses } from "../../app/addresses";
import { Nowhere } from "../../shell/Nowhere";
import { useTitle } from "../../shell/useTitle";
import { ScreenHead } from "../../ui/Panel";
import { Tabs } from "../../ui/Tabs";
import { EmergencyTab } from "./EmergencyTab";
import { ExplainTab } from "./ExplainTab";
import { FoldersTab } from "./FoldersTab";
import { GroupsTab } from "./GroupsTab";
import { ReviewTab } from "./ReviewTab";
import { RolesTab } from "./RolesTab";
import { SessionsTab } from "./SessionsTab";
import { TokensTab } from "./TokensTab";
import { UsersTab } from "./UsersTab";
import { UserScreen } from "./UserScreen";

const TABS: readonly { tab: string; label: string; part: ComponentType }[] = [
  { tab: "", label: "Users", part: UsersTab },
  { tab: "providers", label: "Identity providers", part: GroupsTab },
  { tab: "roles", label: "Roles", part: RolesTab },
  { tab: "tokens", label: "Tokens", part: TokensTab },
  { tab: "sessions", label: "Sessions", part: SessionsTab },
  { tab: "folders", label: "Folders", part: FoldersTab },
  { tab: "emergency", label: "Emergency", part: EmergencyTab },
  { tab: "review", label: "Review", part: ReviewTab },
  { tab: "explain", label: "Explain", part: ExplainTab },
];

export default function Access() {
  const { tab = "", name } = useParams<{ tab?: string; name?: string }>();
  const found = TABS.find((each) => each.tab === tab);
  useTitle(name ?? (found === undefined ? "Access" : `Access: ${found.label}`));
  if (tab === "users" && name !== undefined) return <UserScreen name={name} />;
  if (found === undefined || name !== undefined) return <Nowhere />;
  const Part = found.part;
  return (
    <>
      <ScreenHead title="Access" />
      <Tabs
        label="Parts of access"
        tabs={TABS.map(({ tab: to, label }) => ({ label, to: addresses.access(to) }))}
      />
      <Part />
    </>
  );
}
