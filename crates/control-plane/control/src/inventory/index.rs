//! The inventory in memory, which answers lists, searches and look-ups by name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use strongroom_api::Name;
use strongroom_api::alarm::Alarm;
use strongroom_api::event::Event;
use strongroom_host::protocol::OperationId;
use strongroom_store::{Entries, Entry as StoreEntry, KeyRange, Snapshot};
use strongroom_types::{DatastoreId, SnapshotId, VmId, VolumeId};
use strongroom_vm::ProcessorModel;
use uuid::Uuid;

use super::catalog::{Catalog, Facet, Member, Members, Sums};
use super::table::{Row, Table};
use super::{CREDENTIALS_KEPT_SECONDS, EVENTS_KEPT, Failure, REQUESTS_KEPT, REQUESTS_KEPT_MS, TASKS_KEPT};
use crate::records::{
    AccessAnchorRecord, AccessRecord, AccessRetentionRecord, CapacityDaysRecord, CapacityHoursRecord,
    CredentialRecord, DatastorePaths, DatastoreRecord, DeliveryRecord, DiskRecord, EmergencyRecord, Entrance,
    FolderRecord, GrantRecord, GroupGrantRecord, GroupRecord, HostRecord, IdentityProviderRecord, Named,
    NetworkRecord, ObservedRecord, OutsideSessionRecord, Place, PlacementGroupRecord, PolicyRecord,
    RecipientRecord, Record, RequestRecord, RoleRecord, ScheduleRecord, TaskRecord, TokenRecord,
    TokenSessionRecord, UserRecord, VmRecord, VolumeRecord,
};

/// The inventory in memory.
#[derive(Default)]
pub struct Index {
    /// VMs.
    pub vms: Table<VmRecord>,
    /// The last reports of hosts.
    pub observed: Table<ObservedRecord>,
    /// The schedules of VMs' snapshots.
    pub schedules: Table<ScheduleRecord>,
    /// Snapshots of several VMs.
    pub groups: Table<GroupRecord>,
    /// Volumes.
    pub volumes: Table<VolumeRecord>,
    /// Datastores.
    pub datastores: Table<DatastoreRecord>,
    /// Datastores' capacity in the last hours.
    pub capacity_hours: Table<CapacityHoursRecord>,
    /// Datastores' capacity in the last days.
    pub capacity_days: Table<CapacityDaysRecord>,
    /// Hosts.
    pub hosts: Table<HostRecord>,
    /// Networks.
    pub networks: Table<NetworkRecord>,
    /// Policies.
    pub policies: Table<PolicyRecord>,
    /// Placement groups.
    pub placement_groups: Table<PlacementGroupRecord>,
    /// Tasks, in the order of their requests.
    pub tasks: Table<TaskRecord>,
    /// Raised alarms.
    pub alarms: Table<Alarm>,
    /// Recipients of alarms.
    pub recipients: Table<RecipientRecord>,
    /// What recipients have taken.
    pub deliveries: Table<DeliveryRecord>,
    /// Recent requests, to recognise repetitions.
    pub requests: Table<RequestRecord>,
    /// The tokens that permit everything.
    pub tokens: Table<TokenRecord>,
    /// Users.
    pub users: Table<UserRecord>,
    /// The roles of the site's own.
    pub roles: Table<RoleRecord>,
    /// Folders.
    pub folders: Table<FolderRecord>,
    /// The roles that users have.
    pub grants: Table<GrantRecord>,
    /// Sessions, and tokens with a role.
    pub credentials: Table<CredentialRecord>,
    /// Identity providers.
    pub identity_providers: Table<IdentityProviderRecord>,
    /// The roles that their groups have.
    pub group_grants: Table<GroupGrantRecord>,
    /// Sessions of people who are no users.
    pub outside_sessions: Table<OutsideSessionRecord>,
    /// Sessions of browsers that hang on a token.
    pub token_sessions: Table<TokenSessionRecord>,
    /// Emergency credentials.
    pub emergencies: Table<EmergencyRecord>,
    /// How long the access log is kept, if it was set.
    pub retention: Table<AccessRetentionRecord>,
    /// The last head of the access log that is on the key server's audit log.
    pub anchor: Table<AccessAnchorRecord>,
    events: Table<Event>,
    /// VMs by their names, with the rows of `vms`: lists walk over them.
    vm_names: BTreeMap<String, Row<VmRecord>>,
    catalog: Catalog,
    open_tasks: BTreeSet<String>,
    /// The tasks of the operations that hosts carry out.
    operations: HashMap<OperationId, Uuid>,
}

impl Index {
    /// Reads a whole snapshot, without the access log.
    pub(super) fn read(snapshot: &dyn Snapshot) -> Result<Self, Failure> {
        let mut index = Self::default();
        let log = KeyRange::prefix(AccessRecord::PREFIX);
        let before = KeyRange { start: Vec::new(), end: Some(log.start) };
        let behind = KeyRange { start: log.end.unwrap_or_default(), end: None };
        for part in [before, behind] {
            for entry in Entries::new(snapshot, part) {
                let entry = entry?;
                index.apply(&entry.key, Some(&entry))?;
            }
        }
        Ok(index)
    }

    /// Whether the value of this key is in the index, or may be: the access log is not.
    pub(super) fn has(key: &[u8]) -> bool {
        !key.starts_with(AccessRecord::PREFIX.as_bytes())
    }

    /// Merges the present value of one key. Ignores keys of a later version.
    pub(super) fn apply(&mut self, key: &[u8], entry: Option<&StoreEntry>) -> Result<(), Failure> {
        let Ok(key) = std::str::from_utf8(key) else { return Ok(()) };
        let Some((kind, id)) = key.split_once('/') else { return Ok(()) };
        match kind {
            "vm" => {
                if let Some(before) = change(&mut self.vms, key, id, entry)? {
                    // The value may be ahead of the changes that were told: another VM may have its
                    // name by now.
                    if self.vm_names.get(before.name()).is_some_and(|named| named.id == before.id) {
                        self.vm_names.remove(before.name());
                    }
                }
                if let Some(now) = self.vms.get(id) {
                    self.vm_names.insert(now.name().to_owned(), now.clone());
                }
                self.count(id);
            }
            "observed" => {
                drop(change(&mut self.observed, key, id, entry)?);
                self.count(id);
            }
            "schedule" => drop(change(&mut self.schedules, key, id, entry)?),
            "group" => drop(change(&mut self.groups, key, id, entry)?),
            "volume" => drop(change(&mut self.volumes, key, id, entry)?),
            "datastore" => drop(change(&mut self.datastores, key, id, entry)?),
            "capacity-hours" => drop(change(&mut self.capacity_hours, key, id, entry)?),
            "capacity-days" => drop(change(&mut self.capacity_days, key, id, entry)?),
            "host" => drop(change(&mut self.hosts, key, id, entry)?),
            "network" => drop(change(&mut self.networks, key, id, entry)?),
            "policy" => drop(change(&mut self.policies, key, id, entry)?),
            "placement-group" => drop(change(&mut self.placement_groups, key, id, entry)?),
            "task" => {
                let before = change(&mut self.tasks, key, id, entry)?;
                if let Some(operation) = before.and_then(|before| before.operation) {
                    self.operations.remove(&operation);
                }
                match self.tasks.get(id) {
                    Some(task) if !task.task.state.is_over() => {
                        self.open_tasks.insert(id.to_owned());
                        self.operations.extend(task.operation.map(|operation| (operation, task.task.id)));
                    }
                    _ => drop(self.open_tasks.remove(id)),
                }
            }
            "event" => drop(change(&mut self.events, key, id, entry)?),
            "alarm" => drop(change(&mut self.alarms, key, id, entry)?),
            "recipient" => drop(change(&mut self.recipients, key, id, entry)?),
            "delivery" => drop(change(&mut self.deliveries, key, id, entry)?),
            "request" => drop(change(&mut self.requests, key, id, entry)?),
            "token" => drop(change(&mut self.tokens, key, id, entry)?),
            "user" => drop(change(&mut self.users, key, id, entry)?),
            "role" => drop(change(&mut self.roles, key, id, entry)?),
            "folder" => drop(change(&mut self.folders, key, id, entry)?),
            "grant" => drop(change(&mut self.grants, key, id, entry)?),
            "credential" => drop(change(&mut self.credentials, key, id, entry)?),
            "identity-provider" => drop(change(&mut self.identity_providers, key, id, entry)?),
            "group-grant" => drop(change(&mut self.group_grants, key, id, entry)?),
            "outside-session" => drop(change(&mut self.outside_sessions, key, id, entry)?),
            "token-session" => drop(change(&mut self.token_sessions, key, id, entry)?),
            "emergency" => drop(change(&mut self.emergencies, key, id, entry)?),
            "access-retention" => drop(change(&mut self.retention, key, id, entry)?),
            "access-anchor" => drop(change(&mut self.anchor, key, id, entry)?),
            _ => {}
        }
        Ok(())
    }

    /// How long the access log is kept, and how large it may become.
    pub fn access_retention(&self) -> AccessRetentionRecord {
        self.retention.last().map(|row| *row.record).unwrap_or_default()
    }

    /// The roles that were given to a user.
    pub fn grants_to(&self, user: Uuid) -> impl Iterator<Item = &Row<GrantRecord>> {
        self.grants.iter().filter(move |grant| grant.user == user)
    }

    /// The session of somebody who is no user, by its id.
    pub fn outside_session(&self, id: Uuid) -> Option<&Row<OutsideSessionRecord>> {
        self.outside_sessions.iter().find(|session| session.id == id)
    }

    /// The roles of the groups with which somebody came in by an identity provider. One that came
    /// in otherwise has none.
    pub fn grants_by_groups(
        &self,
        session: &OutsideSessionRecord,
    ) -> impl Iterator<Item = &Row<GroupGrantRecord>> {
        let named = match &session.entrance {
            Entrance::Provider { provider, groups, .. } => Some((*provider, groups.clone())),
            Entrance::Emergency { .. } => None,
        };
        self.group_grants.iter().filter(move |grant| {
            named.as_ref().is_some_and(|(provider, groups)| {
                grant.provider == *provider && groups.contains(&grant.group)
            })
        })
    }

    /// The role of the site's own with this name.
    pub fn own_role(&self, name: &Name) -> Option<&Row<RoleRecord>> {
        self.roles.iter().find(|own| own.name == *name)
    }

    /// The VM with this id.
    pub fn vm(&self, id: VmId) -> Option<&Row<VmRecord>> {
        self.vms.get(&id.to_string())
    }

    /// The placement groups of a VM.
    pub fn placement_groups_of(&self, vm: VmId) -> impl Iterator<Item = &Row<PlacementGroupRecord>> {
        self.placement_groups.iter().filter(move |group| group.vms.contains(&vm))
    }

    /// The policy of a VM, if it has one.
    pub fn policy_of(&self, vm: &VmRecord) -> Option<&Row<PolicyRecord>> {
        self.policies.get(&vm.policy?.to_string())
    }

    /// The VM with this name or id.
    pub fn find_vm(&self, named: &str) -> Option<&Row<VmRecord>> {
        self.find_any(named).filter(|vm| !vm.holds_volume)
    }

    /// The holder of the volume with this name, or with this id of its own.
    pub fn find_holder(&self, named: &str) -> Option<&Row<VmRecord>> {
        self.find_any(named).filter(|vm| vm.holds_volume)
    }

    /// The VM or holder with this name or id. Both have directories in datastores, so they do not
    /// have the same names.
    pub fn find_any(&self, named: &str) -> Option<&Row<VmRecord>> {
        self.vm_names.get(named).or_else(|| by_id(&self.vms, named))
    }

    /// The VMs of a host.
    pub fn vms_on(&self, host: Uuid) -> impl Iterator<Item = &Row<VmRecord>> {
        self.vms_with(&Facet::Host(host))
    }

    /// The VMs with a volume in a datastore.
    pub fn vms_in(&self, datastore: DatastoreId) -> impl Iterator<Item = &Row<VmRecord>> {
        self.vms_with(&Facet::Datastore(datastore))
    }

    /// The VMs that [share](VmRecord::shares_with) layers of a VM.
    pub fn clones_of(&self, vm: VmId) -> impl Iterator<Item = &Row<VmRecord>> {
        self.vms_with(&Facet::LayersOf(vm))
    }

    /// The VMs and holders of volumes that have a facet.
    pub fn vms_with(&self, facet: &Facet) -> impl Iterator<Item = &Row<VmRecord>> + use<'_> {
        self.members(facet).iter().filter_map(|member| self.member(member))
    }

    /// The places of VMs and holders of volumes that have a facet, without their records.
    pub fn members(&self, facet: &Facet) -> &Members {
        self.catalog.members(facet)
    }

    /// The VMs and holders of volumes at places that have VMs.
    pub fn vms_at(&self, places: &[Place]) -> Members {
        let mut all = Members::default();
        for place in places {
            match place {
                Place::Folder(folder) => all.add(self.members(&Facet::Folder(*folder))),
                Place::Vm(vm) => all.add(&self.catalog.alone(&vm.to_string())),
                // The whole site is no place among others, and these have no VMs.
                Place::Site | Place::Datastore(_) | Place::Network(_) => {}
            }
        }
        all
    }

    /// The record of a member of a set.
    pub fn member(&self, member: &Member) -> Option<&Row<VmRecord>> {
        self.vms.get(member.id())
    }

    /// The processors that VMs have, besides that of their host.
    pub fn processors(&self) -> impl Iterator<Item = (&ProcessorModel, &Members)> {
        self.catalog.processors()
    }

    /// Sums over all VMs ([`Facet::Any`]), those of a host, or in a datastore.
    pub fn sums(&self, facet: &Facet) -> Sums {
        self.catalog.sums(facet)
    }

    /// The number of records of VMs and volumes, and of states of VMs, that were read.
    pub fn rows_read(&self) -> u64 {
        self.vms.rows_read()
            + self.observed.rows_read()
            + self.volumes.rows_read()
            + self.schedules.rows_read()
    }

    fn count(&mut self, id: &str) {
        let power = self.observed.get(id).map(|seen| seen.power);
        self.catalog.count(id, self.vms.get(id).map(|vm| &*vm.record), power);
    }

    /// The datastore of a VM.
    pub fn datastore_of(&self, vm: &VmRecord) -> Option<&Row<DatastoreRecord>> {
        self.datastores.get(&vm.datastore.to_string())
    }

    /// The datastores of disks of a VM that are not in its own.
    pub fn other_datastores_of(&self, vm: &VmRecord) -> Vec<&Row<DatastoreRecord>> {
        let others = vm.datastores().into_iter().filter(|id| *id != vm.datastore);
        others.filter_map(|id| self.datastores.get(&id.to_string())).collect()
    }

    /// The paths of a VM's datastores on a host; `None` if it does not reach all of them.
    pub fn paths_of(&self, vm: &VmRecord, host: Uuid) -> Option<DatastorePaths> {
        let path_of = |id: DatastoreId| {
            let mount = self.datastores.get(&id.to_string())?.on(host)?;
            Some(PathBuf::from(&mount.path))
        };
        DatastorePaths::of(vm, path_of)
    }

    /// The name of a disk's datastore, or its id if it is not known any more.
    pub fn datastore_name_of(&self, vm: &VmRecord, disk: &DiskRecord) -> String {
        let id = vm.datastore_of(disk).to_string();
        self.datastores.get(&id).map_or(id, |found| found.name.to_string())
    }

    /// The host of a VM.
    pub fn host_of(&self, vm: &VmRecord) -> Option<&Row<HostRecord>> {
        self.hosts.get(&vm.host.to_string())
    }

    /// The name of a VM's datastore, or its id if it is not known any more.
    pub fn datastore_name(&self, vm: &VmRecord) -> String {
        self.datastore_of(vm).map_or_else(|| vm.datastore.to_string(), |found| found.name.to_string())
    }

    /// VMs and holders of volumes in the order of their names, from a name on.
    pub fn vms_by_name(&self, from: &str) -> impl Iterator<Item = &Row<VmRecord>> {
        self.vms.reading(
            self.vm_names.range::<str, _>((Bound::Included(from), Bound::Unbounded)).map(|(_, row)| row),
        )
    }

    /// The last report about a VM.
    pub fn observed(&self, vm: VmId) -> Option<&Row<ObservedRecord>> {
        self.observed.get(&vm.to_string())
    }

    /// The schedule of a VM's snapshots.
    pub fn schedule(&self, vm: VmId) -> Option<&Row<ScheduleRecord>> {
        self.schedules.get(&vm.to_string())
    }

    /// The group that a snapshot of several VMs is of.
    pub fn group(&self, snapshot: SnapshotId) -> Option<&Row<GroupRecord>> {
        self.groups.get(&snapshot.to_string())
    }

    /// The owner of a volume.
    pub fn volume(&self, volume: VolumeId) -> Option<&Row<VolumeRecord>> {
        self.volumes.get(&volume.to_string())
    }

    /// The task with this id.
    pub fn task(&self, id: Uuid) -> Option<&Row<TaskRecord>> {
        self.tasks.get(&id.to_string())
    }

    /// The open task that has an operation carried out.
    pub fn task_of(&self, operation: OperationId) -> Option<Uuid> {
        self.operations.get(&operation).copied()
    }

    /// Tasks that have not ended.
    pub fn open_tasks(&self) -> impl Iterator<Item = &Row<TaskRecord>> {
        self.open_tasks.iter().filter_map(|id| self.tasks.get(id))
    }

    /// The number of tasks that have not ended.
    pub fn open_tasks_count(&self) -> usize {
        self.open_tasks.len()
    }

    /// Events, oldest first.
    pub fn events(&self) -> &Table<Event> {
        &self.events
    }

    /// The keys of up to `most` records that are past their retention.
    pub(super) fn outdated(&self, now_unix_ms: u64, most: usize) -> Vec<String> {
        let events = self.events.iter().take(self.events.len().saturating_sub(EVENTS_KEPT));
        let ended = self.tasks.len() - self.open_tasks.len();
        let tasks = self.tasks.iter().filter(|task| task.task.state.is_over());
        let tasks = tasks.take(ended.saturating_sub(TASKS_KEPT));
        let too_many = self.requests.len().saturating_sub(REQUESTS_KEPT);
        let mut requests: Vec<_> = self.requests.iter().collect();
        if too_many > 0 {
            requests.sort_unstable_by_key(|request| request.at_unix_ms);
        }
        let requests = requests.into_iter().enumerate().filter(|(at, request)| {
            *at < too_many || request.at_unix_ms.saturating_add(REQUESTS_KEPT_MS) < now_unix_ms
        });
        let now_unix_seconds = now_unix_ms / 1000;
        let ended = self.credentials.iter().filter(|credential| {
            credential.expires_unix_seconds.saturating_add(CREDENTIALS_KEPT_SECONDS) < now_unix_seconds
        });
        // The rights of somebody who is no user end with the session, also those of its tasks.
        let over = self.outside_sessions.iter().filter(|one| one.expires_unix_seconds <= now_unix_seconds);
        // One whose token is gone counts no more.
        let hang = self.token_sessions.iter().filter(|session| {
            let token = &session.token_sha256;
            session.expires_unix_seconds <= now_unix_seconds
                || (self.credentials.get(token).is_none() && self.tokens.get(token).is_none())
        });
        let keys = over
            .map(|over| over.key())
            .chain(hang.map(|session| session.key()))
            .chain(events.map(|event| event.key()))
            .chain(tasks.map(|task| task.key()));
        let keys = keys.chain(ended.map(|ended| ended.key()));
        keys.chain(requests.map(|(_, request)| request.key())).take(most).collect()
    }
}

/// The record with an id in any of its spellings.
pub fn by_id<'table, R: Record>(table: &'table Table<R>, id: &str) -> Option<&'table Row<R>> {
    table.get(&Uuid::parse_str(id).ok()?.to_string())
}

/// The record with this name or id, for kinds with few records.
pub fn by_name_or_id<'table, R: Named>(table: &'table Table<R>, named: &str) -> Option<&'table Row<R>> {
    table.iter().find(|row| row.name() == named).or_else(|| by_id(table, named))
}

/// Merges the present value of a record. Returns the old one.
fn change<R: Record>(
    table: &mut Table<R>,
    key: &str,
    id: &str,
    entry: Option<&StoreEntry>,
) -> Result<Option<Row<R>>, Failure> {
    let Some(entry) = entry else { return Ok(table.remove(id)) };
    let record: R = serde_json::from_slice(&entry.value)
        .map_err(|error| Failure::Damaged { key: key.to_owned(), reason: error.to_string() })?;
    Ok(table.insert(Row { record: Arc::new(record), revision: entry.mod_revision }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use strongroom_store::Revision;

    use super::*;

    /// The value of a VM may be newer than the change that is told: its name may be another VM's
    /// former one, of whose change nothing was told yet.
    #[test]
    fn a_vm_that_gives_its_name_away_does_not_take_it_from_the_next_one() {
        let [first, second] = [VmId::random(), VmId::random()];
        let vm = |id: VmId, name: &str| -> Value {
            json!({ "id": id, "name": name, "datastore": DatastoreId::random(), "host": Uuid::new_v4(),
                "hardware": { "machine": "q35", "firmware": "bios", "cpus": {}, "memory": 64 << 20, "nics": [], "tpm": false,
                    "boot": { "type": "disk" }, "vnc": true, "guest_agent": true, "disks": [] },
                "lifecycle": "present", "desired": "stopped", "restart": "never", "generation": 0, "created_unix_seconds": 0 })
        };
        let mut index = Index::default();
        let mut told = |id: VmId, name: &str| {
            let key = format!("vm/{id}").into_bytes();
            let value = vm(id, name).to_string().into_bytes();
            let revision = Revision(1);
            let entry = StoreEntry {
                key: key.clone(),
                value,
                create_revision: revision,
                mod_revision: revision,
                version: 1,
                lease: None,
            };
            index.apply(&key, Some(&entry)).unwrap();
        };
        told(first, "a");
        told(second, "b");
        // `first` has become `c` and `second` `a`; the later change is told first.
        told(second, "a");
        told(first, "c");
        assert_eq!(index.find_vm("a").unwrap().id, second);
        assert_eq!(index.find_vm("c").unwrap().id, first);
        assert!(index.find_vm("b").is_none());
        assert_eq!(index.vms_by_name("").count(), 2);
    }
}
