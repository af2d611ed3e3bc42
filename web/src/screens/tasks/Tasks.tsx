import { useSearchParams } from "wouter";
import { Link } from "wouter";
import { useAsk } from "../../api/ask";
import { addresses, addressOfObject } from "../../app/addresses";
import type { Schemas, Task } from "../../api/types";
import { duration } from "../../lib/units";
import { SelectField } from "../../ui/Field";
import { Empty, ProblemNote, Waiting } from "../../ui/Notes";
import { Panel, ScreenHead } from "../../ui/Panel";
import { TaskMark } from "../../ui/Status";
import { Table, type Column } from "../../ui/Table";
import { When } from "../../ui/When";
import { useTitle } from "../../shell/useTitle";

const SHOWN_MAX = 200;
const STATES: readonly { value: Schemas["TaskState"] | ""; label: string }[] = [
  { value: "", label: "All" },
  { value: "running", label: "Running" },
  { value: "done", label: "Done" },
  { value: "failed", label: "Failed" },
  { value: "cancelled", label: "Cancelled" },
];

export default function Tasks() {
  useTitle("Tasks");
  const [query, setQuery] = useSearchParams();
  const state =
    STATES.find(({ value }) => value !== "" && value === query.get("state"))?.value ?? "";
  const asked = useAsk(
    "task_list",
    { query: { limit: SHOWN_MAX, ...(state === "" ? {} : { state }) } },
    { keep: true },
  );
  return (
    <>
      <ScreenHead title="Tasks" />
      <Panel
        title={
          asked.data === undefined ? "Newest first" : `${asked.data.total} tasks, newest first`
        }
        isFlush
        aside={
          <SelectField
            label="State"
            value={state}
            options={STATES}
            onChange={(value) => setQuery(value === "" ? {} : { state: value }, { replace: true })}
          />
        }
      >
        {asked.error === null ? null : (
          <ProblemNote problem={asked.error} retry={() => void asked.refetch()} />
        )}
        {asked.isPending ? <Waiting lines={6} /> : null}
        {asked.data?.items.length === 0 ? (
          <Empty icon="task" title="No such task">
            Each change of a VM, a datastore or a host is a task. It goes on after a restart of the
            control plane.
          </Empty>
        ) : null}
        {asked.data === undefined || asked.data.items.length === 0 ? null : (
          <Table label="Tasks" columns={COLUMNS} rows={asked.data.items} keyOf={({ id }) => id} />
        )}
      </Panel>
    </>
  );
}

const COLUMNS: readonly Column<Task>[] = [
  {
    name: "Task",
    cell: ({ id, title }) => <Link href={addresses.task(id)}>{title}</Link>,
  },
  {
    name: "Object",
    cell: ({ object }) => {
      const to = addressOfObject(object);
      return to === undefined ? object.name : <Link href={to}>{object.name}</Link>;
    },
  },
  { name: "State", cell: ({ state }) => <TaskMark state={state} /> },
  { name: "By", isMinor: true, cell: ({ by }) => by },
  { name: "Began", cell: ({ created_unix_ms }) => <When ms={created_unix_ms} /> },
  {
    name: "Took",
    isMinor: true,
    isNumber: true,
    cell: ({ created_unix_ms, ended_unix_ms }) =>
      typeof ended_unix_ms === "number" ? duration((ended_unix_ms - created_unix_ms) / 1000) : "",
  },
];
