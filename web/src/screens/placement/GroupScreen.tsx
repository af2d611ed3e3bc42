import { useState } from "react";
import { Link, useLocation, useParams } from "wouter";
import { ActionDialog } from "../../actions/ActionDialog";
import { deleteGroup, joinGroup, leaveGroup } from "../../actions/site";
import { useAsk } from "../../api/ask";
import type { Schemas } from "../../api/types";
import { addresses } from "../../app/addresses";
import { useEstate } from "../../live/useLive";
import { count, plural } from "../../lib/units";
import { useMay } from "../../session/useMay";
import { useRefusal } from "../../session/useMe";
import { Nowhere } from "../../shell/Nowhere";
import { useTitle } from "../../shell/useTitle";
import { Button } from "../../ui/Button";
import { TextField } from "../../ui/Field";
import { MayButton } from "../../ui/MayButton";
import { Menu } from "../../ui/Menu";
import { Empty, Note, ProblemNote, Waiting } from "../../ui/Notes";
import { Panel, ScreenHead } from "../../ui/Panel";
import { Table, type Column } from "../../ui/Table";
import { KEEPS } from "./keeps";

type Group = Schemas["PlacementGroup"];

/** As many can join with one request. */
const JOIN_MAX = 64;

export default function GroupScreen() {
  const { group: name = "" } = useParams<{ group: string }>();
  const asked = useAsk("placement_group_show", { path: { group: name } });
  const group = asked.data;
  useTitle(group?.name ?? name);
  if (asked.error?.code === "not_found") return <Nowhere />;
  if (group === undefined) {
    return asked.error === null ? (
      <Waiting lines={6} label={`Loading ${name}`} />
    ) : (
      <ProblemNote problem={asked.error} retry={() => void asked.refetch()} />
    );
  }
  return (
    <>
      <ScreenHead
        title={group.name}
        above={<Link href={addresses.placementGroups}>Placement groups</Link>}
        actions={<GroupActions group={group} />}
      />
      <Note>
        <p>
          Its VMs are kept {KEEPS[group.keep]}. VMs that are on one host already cannot join a group
          that is kept apart.
        </p>
      </Note>
      <Members group={group} />
    </>
  );
}

function Members({ group }: { group: Group }) {
  const mayChange = useRefusal()("placement_group_set") === undefined;
  const [isJoining, join] = useState(false);
  const [leaving, leave] = useState<string>();
  const columns: readonly Column<Schemas["GroupedVm"]>[] = [
    { name: "VM", cell: ({ name }) => <Link href={addresses.vm(name)}>{name}</Link> },
    {
      name: "Host",
      cell: ({ host }) =>
        typeof host === "string" ? <Link href={addresses.host(host)}>{host}</Link> : "none",
    },
    {
      name: "Actions",
      isUnseen: true,
      cell: ({ name }) =>
        mayChange ? (
          <Button look="quiet" onPress={() => leave(name)} aria-label={`Take out ${name}`}>
            Take out&hellip;
          </Button>
        ) : null,
    },
  ];
  return (
    <Panel
      title={plural(group.vms.length, "VM")}
      isFlush
      aside={
        <MayButton operation="placement_group_set" icon="plus" onPress={() => join(true)}>
          Add VMs&hellip;
        </MayButton>
      }
    >
      {group.vms.length === 0 ? (
        <Empty icon="vm" title="No VM is in it">
          Add VMs here, or name the group when a VM is created.
        </Empty>
      ) : (
        <Table label="VMs" columns={columns} rows={group.vms} keyOf={({ name }) => name} />
      )}
      {isJoining ? <JoinDialog group={group} onClose={() => join(false)} /> : null}
      {leaving === undefined ? null : (
        <ActionDialog
          title={`Take ${leaving} from ${group.name}`}
          submit="Take out"
          actions={[leaveGroup(group.name, [leaving])]}
          onClose={() => leave(undefined)}
        >
          <p>It stays where it is, and is placed without regard to the group from then on.</p>
        </ActionDialog>
      )}
    </Panel>
  );
}

function JoinDialog({ group, onClose }: { group: Group; onClose: () => void }) {
  const { vms } = useEstate();
  const [text, setText] = useState("");
  const names = text.split(/[\s,]+/).filter((name) => name !== "");
  const known = new Set(vms.flatMap(({ name, id }) => [name, id]));
  const unknown = names.filter((name) => !known.has(name));
  const fault =
    unknown.length > 0
      ? `No VM is called ${unknown.join(", ")}.`
      : names.length > JOIN_MAX
        ? `At most ${count(JOIN_MAX)} at a time.`
        : undefined;
  return (
    <ActionDialog
      title={`Add VMs to ${group.name}`}
      submit="Add"
      actions={names.length > 0 && fault === undefined ? [joinGroup(group.name, names)] : []}
      onClose={onClose}
    >
      <TextField
        label="VMs"
        hint="Names or ids, with spaces or commas between them."
        value={text}
        onChange={setText}
        fault={fault}
      />
    </ActionDialog>
  );
}

function GroupActions({ group }: { group: Group }) {
  const may = useMay();
  const [, go] = useLocation();
  const [isDeleting, begin] = useState(false);
  return (
    <>
      <Menu
        label={`Actions for ${group.name}`}
        choices={[
          may("placement_group_delete", {
            id: "delete",
            label: "Delete\u2026",
            hint: "Its VMs stay",
            isDangerous: true,
            choose: () => begin(true),
          }),
        ]}
      >
        Actions
      </Menu>
      {isDeleting ? (
        <ActionDialog
          title={`Delete ${group.name}`}
          submit="Delete"
          actions={[deleteGroup(group.name)]}
          confirm={group.name}
          onClose={() => begin(false)}
          onDone={() => go(addresses.placementGroups)}
          loses={
            <p>
              That {plural(group.vms.length, "VM")} are kept {group.keep}. The VMs stay where they
              are.
            </p>
          }
        />
      ) : null}
    </>
  );
}
