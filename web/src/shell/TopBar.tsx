import { useAsk } from "../api/ask";
import { addresses } from "../app/addresses";
import { asProblem } from "../api/problem";
import { signOut, signOutEverywhere } from "../session/sign-in";
import { tellTabs } from "../session/tabs";
import { useMe } from "../session/useMe";
import { Button, IconButton } from "../ui/Button";
import { Icon } from "../ui/Icon";
import { Menu } from "../ui/Menu";
import { say } from "../ui/toasts";
import { Link, useLocation } from "wouter";
import { Brand } from "./Brand";
import { LiveMark } from "./LiveNotice";
import { ThemeSwitch } from "./ThemeSwitch";

interface Props {
  onMenu: () => void;
  onSearch: () => void;
  onTasks: () => void;
}

export function TopBar({ onMenu, onSearch, onTasks }: Props) {
  return (
    <header className="top">
      <span className="top-menu">
        <IconButton icon="menu" label="Menu" onPress={onMenu} />
      </span>
      <Link href={addresses.overview} className="top-brand" aria-label="Strongroom: overview">
        <Brand />
      </Link>
      <button type="button" className="top-search" onClick={onSearch}>
        <Icon name="search" size={16} />
        <span>Search or go to</span>
        <kbd>Ctrl K</kbd>
      </button>
      <div className="top-end">
        <LiveMark />
        <TasksButton onTasks={onTasks} />
        <ThemeSwitch />
        <Account />
      </div>
    </header>
  );
}

function TasksButton({ onTasks }: { onTasks: () => void }) {
  const { data } = useAsk("task_list", { query: { state: "running", limit: 1 } }, { keep: true });
  const running = data?.total ?? 0;
  return (
    <Button look="quiet" icon="task" onPress={onTasks}>
      <span className="top-word">Tasks</span>
      {running === 0 ? null : (
        <span className="count number">
          <span className="unseen">, </span>
          {running}
          <span className="unseen"> running</span>
        </span>
      )}
    </Button>
  );
}

function Account() {
  const { name } = useMe();
  const [, go] = useLocation();
  const leave = (end: () => Promise<unknown>) => {
    end()
      .then(() => {
        tellTabs({ kind: "signed_out" });
        location.assign("/");
      })
      .catch((error: unknown) =>
        say({ tone: "bad", text: "Not signed out", problem: asProblem(error) }),
      );
  };
  return (
    <Menu
      label={`Account of ${name}`}
      icon="people"
      look="quiet"
      choices={[
        {
          id: "settings",
          label: "Settings",
          icon: "settings",
          choose: () => go(addresses.settings),
        },
        { id: "about", label: "About", icon: "info", choose: () => go(addresses.about) },
        { id: "out", label: "Sign out", icon: "out", choose: () => leave(signOut) },
        {
          id: "everywhere",
          label: "Sign out everywhere",
          hint: "Ends all of your sessions, also those of the command line",
          icon: "out",
          choose: () => leave(signOutEverywhere),
        },
      ]}
    />
  );
}
