import { useState } from "react";
import { ActionDialog } from "../../actions/ActionDialog";
import { endSession } from "../../actions/access";
import { useRun } from "../../actions/run";
import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { plural } from "../../lib/units";
import { Button } from "../../ui/Button";
import { Listed } from "../../ui/Listed";
import { Empty } from "../../ui/Notes";
import { Panel } from "../../ui/Panel";
import { Table, type Column } from "../../ui/Table";
import { When } from "../../ui/When";

type Session = Schemas["Session"];

const MS = 1_000;

export function SessionsTab() {
  const asked = useAsk("session_list", { query: { limit: 1000 } }, { everyMs: 30_000 });
  const [isEnding, end] = useState(false);
  const sessions = asked.data?.items ?? [];
  return (
    <Panel
      title={asked.data === undefined ? "Sessions" : plural(asked.data.total, "session")}
      isFlush
      aside={
        <Button
          look="plain"
          why={sessions.length === 0 ? "There is no session to end." : undefined}
          onPress={() => end(true)}
        >
          End all&hellip;
        </Button>
      }
    >
      <Listed
        asked={asked}
        empty={
          <Empty icon="people" title="Nobody is signed in as a user">
            Sessions of people are here, and of emergency credentials, until they end. You see your
            own, and all of them with the right to manage roles. Tokens have no sessions.
          </Empty>
        }
      >
        {(found) => <SessionLines sessions={found} withUsers />}
      </Listed>
      {isEnding ? (
        <ActionDialog
          title={`End ${plural(sessions.length, "session")}`}
          submit="End all"
          actions={sessions.map(endSession)}
          confirm={`end ${sessions.length}`}
          onClose={() => end(false)}
          loses={
            <p>
              Everybody is signed out at once, you too, and has to sign in again. Tasks that have
              not begun at a host by then are cancelled.
            </p>
          }
        />
      ) : null}
    </Panel>
  );
}

/** Sessions, each with its end. */
export function SessionLines({
  sessions,
  withUsers = false,
}: {
  sessions: readonly Session[];
  withUsers?: boolean;
}) {
  const run = useRun();
  const user: Column<Session> = { name: "Who", cell: (session) => session.user };
  const columns: readonly Column<Session>[] = [
    ...(withUsers ? [user] : []),
    {
      name: "Began",
      cell: ({ created_unix_seconds }) => <When ms={created_unix_seconds * MS} />,
    },
    {
      name: "Ends",
      cell: ({ expires_unix_seconds }) => <When ms={expires_unix_seconds * MS} />,
    },
    { name: "Groups", cell: ({ groups = [] }) => groups.join(", ") },
    {
      name: "Actions",
      isUnseen: true,
      cell: (session) => (
        <Button
          look="quiet"
          onPress={() => void run([endSession(session)])}
          aria-label={`End this session of ${session.user}`}
        >
          End
        </Button>
      ),
    },
  ];
  return <Table label="Sessions" columns={columns} rows={sessions} keyOf={({ id }) => id} />;
}
