//! The inventory as callers see it.

use std::borrow::Cow;
use std::path::PathBuf;

use strongroom_api::datastore::{Datastore, DatastoreHost, DatastoreState};
use strongroom_api::host::{Host, HostFenced, HostPrograms, HostState, ProcessorLack};
use strongroom_api::limits::{PAGE_DEFAULT, PAGE_MAX};
use strongroom_api::policy::Policy;
use strongroom_api::task::{Task, TaskListQuery};
use strongroom_api::vm::{
    Board, Disk, Dump, PowerState, SavedMemory, Tag, TagError, VmKey, VmListQuery, VmOrigin, VmSort,
    VmSummary, VmView, VolumeState,
};
use strongroom_api::{ListQuery, ObjectKind, ObjectRef, Page, Problem};
use strongroom_host::protocol;
use strongroom_types::{ProviderKey, VmId};
use uuid::Uuid;

use super::access::{Reach, Rights, sees_task};
use super::alarms::{datastore_object, host_object};
use super::boards::Baseline;
use super::compliance::{deviating, deviations, schedule_of};
use super::live_moves::{ModeOf, mode_of};
use super::placement::{placed_bytes, told_of};
use super::{Control, HostSeat, cursor};
use crate::inventory::{Facet, Index, Member, Members, NAME_PART_BYTES, Row, by_name_or_id, name_parts};
use crate::problems;
use crate::records::{DatastoreRecord, Mount, Place, PolicyRecord, Principal, TaskRecord, VmRecord};

impl Control {
    /// A page of VMs.
    ///
    /// # Errors
    /// [`Problem`] for an invalid name or cursor.
    pub fn list_vms_for(&self, rights: &Rights, query: &VmListQuery) -> Result<Page<VmSummary>, Problem> {
        let limit = limit(query.limit)?;
        let list = match query.sort {
            VmSort::Name => "vms",
            VmSort::NameDescending => "vms descending",
        };
        let cursor = cursor::read(list, query.cursor.as_deref())?;
        let cursor = cursor.as_deref();
        let up = self.hosts_up();
        let index = self.inventory.read();
        let filter = self.filter(&index, rights, query)?;
        let is_up = |vm: &VmRecord| up.contains(&vm.host);
        let reach = rights.reach();
        let found = filter.candidates(&index, &reach, query.power);
        let passes = |vm: &Row<VmRecord>| {
            rights.sees_vm(vm)
                && filter.passes(vm)
                && query.power.is_none_or(|power| self.power_in(&index, vm, is_up(vm)) == power)
        };
        let mut walk: Box<dyn Iterator<Item = &Member>> = match (query.sort, found.are_all) {
            (VmSort::Name, true) => Box::new(found.members.vms_after(cursor)),
            (VmSort::NameDescending, true) => Box::new(found.members.vms_before(cursor)),
            (VmSort::Name, false) => Box::new(found.members.vms_after(None)),
            (VmSort::NameDescending, false) => Box::new(found.members.vms_before(None)),
        };
        let is_behind = |vm: &VmRecord| {
            cursor.is_none_or(|after| match query.sort {
                VmSort::Name => vm.name.as_str() > after,
                VmSort::NameDescending => vm.name.as_str() < after,
            })
        };
        let (mut page, mut total, mut more) = (Vec::with_capacity(limit), 0, false);
        if found.are_all {
            total = found.members.vms.len() as u64;
            page.extend(walk.by_ref().take(limit).filter_map(|member| index.member(member)));
            more = walk.next().is_some();
        } else {
            for vm in walk.filter_map(|member| index.member(member)).filter(|vm| passes(vm)) {
                total += 1;
                match page.len() < limit {
                    _ if !is_behind(vm) => {}
                    true => page.push(vm),
                    false => more = true,
                }
            }
        }
        Ok(Page {
            items: page.iter().map(|vm| self.summary(&index, vm, is_up(vm))).collect(),
            total,
            next: page.last().filter(|_| more).map(|vm| cursor::after(list, vm.name.as_str())),
        })
    }

    /// A VM with all of its details.
    ///
    /// # Errors
    /// [`Problem`] if the VM does not exist.
    pub fn show_vm_for(&self, rights: &Rights, named: &str) -> Result<VmView, Problem> {
        let up = self.hosts_up();
        let index = self.inventory.read();
        let vm = index.find_vm(named).ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
        let seen = index.observed(vm.id);
        let power = self.power_in(&index, vm, up.contains(&vm.host));
        let hardware = &vm.hardware;
        let disks = hardware.disks.iter().map(|disk| Disk {
            name: disk.name.to_string(),
            kind: disk.kind,
            volume: disk.volume,
            size_bytes: disk.size.bytes(),
            frontend: disk.frontend,
            key: disk.sealing.key().map(vm_key),
            integrity: disk.integrity,
            limits: disk.limits,
            becomes: disk.sealing.becomes(),
            datastore: index.datastore_name_of(vm, disk),
            state: match power {
                PowerState::Stopped | PowerState::Suspended => VolumeState::Idle,
                PowerState::Running | PowerState::Paused | PowerState::Stopping => VolumeState::Exposed,
                PowerState::Crashed | PowerState::KeyUnavailable => VolumeState::Troubled,
                PowerState::Starting | PowerState::Unknown => VolumeState::Unknown,
            },
        });
        let datastore = index.datastore_of(vm);
        let ModeOf { mode, overruled } = mode_of(&index, vm);
        Ok(VmView {
            summary: self.summary(&index, vm, up.contains(&vm.host)),
            notes: vm.notes.clone(),
            directory: vm.directory.clone(),
            version: vm.revision.0,
            generation: vm.generation,
            since_unix_seconds: seen.map(|seen| seen.since_unix_seconds),
            created_unix_seconds: vm.created_unix_seconds,
            board: Board { processor: Some(hardware.board.processor().clone()), ..hardware.board.clone() },
            firmware: hardware.firmware,
            topology: hardware.cpus,
            growth: hardware.growth,
            disks: disks.collect(),
            limits: hardware.limits,
            nics: super::networks::shown(&index, &hardware.nics),
            tpm: hardware.tpm,
            seed: hardware.seed,
            boot: hardware.boot.clone(),
            cdrom: hardware.cdrom.clone(),
            restart: vm.restart,
            suspended: seen.and_then(|seen| seen.suspended.as_ref()).map(memory_view),
            dumps: seen.map(|seen| seen.dumps.iter().map(dump_view).collect()).unwrap_or_default(),
            snapshots: super::snapshots::views(&index, vm),
            linked_clones: super::templates::seen_clones(&index, rights, vm),
            key: hardware.keys().first().map(vm_key),
            data_keys_unix_seconds: hardware.encrypted().then(|| vm.data_keys_since()),
            cryptoperiod: self.cryptoperiod_view(&index, vm),
            migration: mode,
            migration_overruled: overruled,
            browser_console_denied: super::tickets::denying_browsers(&index, vm).is_some(),
            deviations: index
                .policy_of(vm)
                .map(|policy| deviations(&index, vm, schedule_of(&index, vm), policy))
                .unwrap_or_default(),
            datastore_ref: datastore.map_or_else(
                || ObjectRef {
                    kind: ObjectKind::Datastore,
                    id: Some(Uuid::from_bytes(*vm.datastore.as_bytes())),
                    name: String::new(),
                },
                |datastore| datastore_object(datastore),
            ),
            host_ref: self.seat(vm.host).map(host_object),
        })
    }

    /// The dumps of a VM's guest.
    ///
    /// # Errors
    /// [`Problem`] if the VM does not exist.
    pub fn list_dumps(&self, named: &str) -> Result<Vec<Dump>, Problem> {
        let index = self.inventory.read();
        let vm = index.find_vm(named).ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
        let seen = index.observed(vm.id);
        Ok(seen.map(|seen| seen.dumps.iter().map(dump_view).collect()).unwrap_or_default())
    }

    fn summary(&self, index: &Index, vm: &VmRecord, up: bool) -> VmSummary {
        let seen = index.observed(vm.id);
        let reason = if up {
            seen.and_then(|seen| seen.reason.as_ref()).map(|reason| reason.message.clone())
        } else {
            Some("its host does not answer".to_owned())
        };
        let policy = index.policy_of(vm);
        VmSummary {
            id: vm.id,
            name: vm.name.clone(),
            power: self.power_in(index, vm, up),
            desired: vm.desired,
            lifecycle: vm.lifecycle,
            cpus: vm.hardware.cpus.count(),
            memory_bytes: vm.hardware.memory.bytes(),
            disk_bytes: vm.hardware.disk_bytes(),
            encrypted: vm.hardware.encrypted(),
            partly_clear: vm.hardware.encrypted() && vm.hardware.clear_disks().next().is_some(),
            datastore: index.datastore_name(vm),
            host: self.seat(vm.host).map(|seat| seat.name.to_string()),
            policy: policy.map(|policy| policy.name.to_string()),
            folder: vm
                .folder
                .and_then(|id| index.folders.get(&id.to_string()))
                .map(|found| found.name.to_string()),
            task: vm.task,
            reason,
            template: vm.template.is_some(),
            origin: vm.origin.as_ref().map(|origin| {
                let now = index.vm(origin.vm);
                VmOrigin {
                    id: origin.vm,
                    name: now.map_or_else(|| origin.name.clone(), |now| now.name.clone()),
                    is_gone: now.is_none(),
                    linked: !origin.shares_with.is_empty(),
                }
            }),
            tags: vm.tags.iter().cloned().collect(),
        }
    }

    fn filter<'query>(
        &self,
        index: &Index,
        rights: &Rights,
        query: &'query VmListQuery,
    ) -> Result<Filter<'query>, Problem> {
        let datastore = query.datastore.as_deref().map(|named| {
            let found = by_name_or_id(&index.datastores, named);
            let found = found.filter(|row| rights.sees_place(Place::Datastore(row.id)));
            found.map(|row| row.id).ok_or_else(|| problems::not_found(ObjectKind::Datastore, named))
        });
        let host = query.host.as_deref().map(|named| {
            let found = by_name_or_id(&index.hosts, named).filter(|_| rights.sees_site());
            found.map(|row| row.id).ok_or_else(|| problems::not_found(ObjectKind::Host, named))
        });
        let policy = query.policy.as_deref().map(|named| {
            let found = by_name_or_id(&index.policies, named);
            found.map(|row| row.id).ok_or_else(|| problems::not_found(ObjectKind::Policy, named))
        });
        Ok(Filter {
            name: query.name.as_deref(),
            datastore: datastore.transpose()?,
            host: host.transpose()?,
            policy: policy.transpose()?,
            tags: query.tag.as_deref().map_or(Ok(Vec::new()), wanted_tags)?,
            ids: query.ids.as_deref(),
            encrypted: query.encrypted,
        })
    }

    /// The hosts that answer.
    fn hosts_up(&self) -> Vec<Uuid> {
        self.hosts.iter().filter(|seat| seat.is_up()).map(|seat| seat.id).collect()
    }

    /// The datastores that a caller may view.
    pub fn list_datastores_for(&self, rights: &Rights) -> Vec<Datastore> {
        let states: Vec<_> = self.hosts.iter().map(|seat| (seat.id, seat.seen().state.clone())).collect();
        let index = self.inventory.read();
        let seen = index.datastores.iter().filter(|row| rights.sees_place(Place::Datastore(row.id)));
        seen.map(|datastore| self.datastore_view(&index, datastore, &states)).collect()
    }

    /// One datastore.
    ///
    /// # Errors
    /// [`Problem`] if it does not exist.
    pub fn show_datastore(&self, named: &str) -> Result<Datastore, Problem> {
        let states: Vec<_> = self.hosts.iter().map(|seat| (seat.id, seat.seen().state.clone())).collect();
        let index = self.inventory.read();
        let found = by_name_or_id(&index.datastores, named);
        let found = found.ok_or_else(|| problems::not_found(ObjectKind::Datastore, named))?;
        Ok(self.datastore_view(&index, found, &states))
    }

    fn datastore_view(
        &self,
        index: &Index,
        datastore: &DatastoreRecord,
        states: &[(Uuid, Option<protocol::Host>)],
    ) -> Datastore {
        let on: Vec<_> = datastore.mounts().map(|mount| SeenMount::of(datastore, mount, states)).collect();
        let best = on.iter().max_by_key(|seen| match seen.state {
            DatastoreState::Available => 3,
            DatastoreState::Full => 2,
            DatastoreState::Unavailable => 1,
            DatastoreState::Unknown => 0,
        });
        let told = best.and_then(|seen| seen.told);
        let here = Facet::Datastore(datastore.id);
        let provisioned_bytes = u64::try_from(index.sums(&here).disk_bytes).unwrap_or(u64::MAX);
        Datastore {
            id: datastore.id,
            name: datastore.name.clone(),
            path: datastore.first.path.clone(),
            ceph: datastore.ceph.clone(),
            redundancy: datastore.redundancy,
            host: self.seat(datastore.first.host).map(|seat| seat.name.to_string()),
            hosts: on.iter().map(|seen| seen.view(index)).collect(),
            state: best.map_or(DatastoreState::Unknown, |seen| seen.state),
            total_bytes: told.map_or(0, |told| told.total_bytes),
            free_bytes: told.map_or(0, |told| told.free_bytes),
            provisioned_bytes,
            vms: index.members(&here).vms.len() as u64,
            trend: self.capacity_trend(index, datastore.id),
        }
    }

    /// All hosts.
    pub fn list_hosts(&self) -> Vec<Host> {
        let index = self.inventory.read();
        let baseline = Baseline::of(&index, self.hosts.iter());
        self.hosts.iter().map(|seat| self.host_view(&index, &baseline, seat)).collect()
    }

    /// One host.
    ///
    /// # Errors
    /// [`Problem`] if it does not exist.
    pub fn show_host(&self, named: &str) -> Result<Host, Problem> {
        let seat = self.find_seat(Some(named))?;
        let index = self.inventory.read();
        Ok(self.host_view(&index, &Baseline::of(&index, self.hosts.iter()), seat))
    }

    /// All policies.
    pub fn list_policies(&self) -> Vec<Policy> {
        let index = self.inventory.read();
        index.policies.iter().map(|policy| policy_view(&index, policy)).collect()
    }

    /// One policy.
    ///
    /// # Errors
    /// [`Problem`] if it does not exist.
    pub fn show_policy(&self, named: &str) -> Result<Policy, Problem> {
        let index = self.inventory.read();
        let found = by_name_or_id(&index.policies, named);
        found
            .map(|policy| policy_view(&index, policy))
            .ok_or_else(|| problems::not_found(ObjectKind::Policy, named))
    }

    /// A page of tasks, newest first.
    ///
    /// # Errors
    /// [`Problem`] for an invalid cursor.
    pub fn list_tasks_for(&self, principal: Principal, query: &TaskListQuery) -> Result<Page<Task>, Problem> {
        let limit = limit(query.limit)?;
        let cursor = cursor::read("tasks", query.cursor.as_deref())?;
        let cursor = cursor.as_deref();
        let index = self.inventory.read();
        let rights = Rights::of(&index, principal);
        let matching: Vec<&Row<TaskRecord>> = index
            .tasks
            .iter()
            .rev()
            .filter(|task| sees_task(&index, &rights, principal, task))
            .filter(|task| query.state.is_none_or(|state| task.task.state == state))
            .filter(|task| query.object.is_none_or(|object| task.task.object.id == Some(object)))
            .collect();
        let start = cursor
            .map_or(0, |after| matching.partition_point(|task| task.task.id.to_string().as_str() >= after));
        let page = &matching[start..matching.len().min(start + limit)];
        let more = start + page.len() < matching.len();
        Ok(Page {
            items: page.iter().map(|task| self.shown(task)).collect(),
            total: matching.len() as u64,
            next: page.last().filter(|_| more).map(|task| cursor::after("tasks", &task.task.id.to_string())),
        })
    }

    /// A task.
    ///
    /// # Errors
    /// [`Problem`] if it does not exist.
    pub fn show_task_for(&self, principal: Principal, id: Uuid) -> Result<Task, Problem> {
        let index = self.inventory.read();
        let rights = Rights::of(&index, principal);
        let task = index.task(id).filter(|task| sees_task(&index, &rights, principal, task));
        let task = task.map(|task| self.shown(task));
        task.ok_or_else(|| problems::not_found(ObjectKind::Task, &id.to_string()))
    }

    /// A host for callers.
    pub(super) fn host_view(&self, index: &Index, baseline: &Baseline, seat: &HostSeat) -> Host {
        let record = index.hosts.get(&seat.id.to_string());
        let maintenance = record.is_some_and(|host| host.maintenance);
        let fenced = record.and_then(|host| host.fenced.as_ref());
        let fenced =
            fenced.map(|fenced| HostFenced { at_unix_ms: fenced.at_unix_ms, complete: fenced.complete });
        let processor_lacks = baseline.lacking(seat);
        let memory_placed_bytes = placed_bytes(index, seat.id);
        host_view(seat, HostFacts { maintenance, fenced, memory_placed_bytes, processor_lacks })
    }

    fn shown(&self, task: &TaskRecord) -> Task {
        let title = task.task.shown_title();
        Task { progress: self.progress(task.task.id), title, ..task.task.clone() }
    }
}

/// What a host of a datastore says about it.
pub(super) struct SeenMount<'a> {
    mount: &'a Mount,
    pub told: Option<&'a protocol::Datastore>,
    pub state: DatastoreState,
}

impl<'a> SeenMount<'a> {
    pub fn of(
        datastore: &DatastoreRecord,
        mount: &'a Mount,
        states: &'a [(Uuid, Option<protocol::Host>)],
    ) -> Self {
        let state = states.iter().find(|(id, _)| *id == mount.host).and_then(|(_, state)| state.as_ref());
        let told = state.and_then(|state| told_of(state, &mount.path));
        let right = told.is_some_and(|told| told.id == Some(datastore.id));
        let state = match told.map(|told| told.state) {
            _ if state.is_none() => DatastoreState::Unknown,
            Some(protocol::DatastoreState::Ready) if right => DatastoreState::Available,
            Some(protocol::DatastoreState::Full) if right => DatastoreState::Full,
            _ => DatastoreState::Unavailable,
        };
        Self { mount, told, state }
    }

    fn view(&self, index: &Index) -> DatastoreHost {
        let Mount { host, path, client } = self.mount;
        let known = index.hosts.get(&host.to_string());
        let host = known.map_or_else(|| host.to_string(), |known| known.name.to_string());
        let reason = self.told.and_then(|told| told.reason.clone());
        DatastoreHost { host, path: path.clone(), client: client.clone(), state: self.state, reason }
    }
}

fn vm_key(key: &ProviderKey) -> VmKey {
    VmKey { provider: key.provider.to_string(), key: key.key.to_string() }
}

/// Selects the VMs of a list.
struct Filter<'query> {
    name: Option<&'query str>,
    datastore: Option<strongroom_types::DatastoreId>,
    host: Option<Uuid>,
    policy: Option<Uuid>,
    tags: Vec<Tag>,
    ids: Option<&'query [VmId]>,
    encrypted: Option<bool>,
}

impl Filter<'_> {
    fn passes(&self, vm: &VmRecord) -> bool {
        self.name.is_none_or(|part| contains(vm.name.as_str(), part))
            && self.datastore.is_none_or(|datastore| vm.datastores().contains(&datastore))
            && self.host.is_none_or(|host| vm.host == host)
            && self.policy.is_none_or(|policy| vm.policy == Some(policy))
            && self.ids.is_none_or(|ids| ids.contains(&vm.id))
            && self.tags.iter().all(|wanted| vm.tags.iter().any(|has| wanted.finds(has)))
            && self.encrypted.is_none_or(|encrypted| vm.hardware.encrypted() == encrypted)
    }
}

impl Filter<'_> {
    /// The VMs to look at: few more than pass, and those that the caller reaches.
    fn candidates<'index>(
        &self,
        index: &'index Index,
        reach: &Reach,
        power: Option<PowerState>,
    ) -> Candidates<'index> {
        let mut facets: Vec<Facet> = Vec::new();
        facets.extend(self.datastore.map(Facet::Datastore));
        facets.extend(self.host.map(Facet::Host));
        facets.extend(self.policy.map(Facet::Policy));
        facets.extend(self.encrypted.map(Facet::Encrypted));
        // Each VM with these conditions has one of the facets, and not the other way round: what a
        // host that is away said last does not count.
        let mut are_all = self.tags.is_empty() && power.is_none();
        facets.extend(power.filter(|power| *power != PowerState::Unknown).map(Facet::Power));
        facets.extend(self.tags.iter().map(|tag| Facet::Tag(tag.key().to_owned())));
        if let Some(part) = self.name.filter(|part| !part.is_empty()) {
            are_all &= part.len() == NAME_PART_BYTES;
            facets.extend(name_parts(part).into_iter().map(Facet::NamePart));
        }
        let mut of_places: Option<Members> = None;
        match reach.places.as_deref() {
            None => {}
            Some([Place::Folder(folder)]) => facets.push(Facet::Folder(*folder)),
            Some(places) => {
                are_all = false;
                of_places = Some(index.vms_at(places));
            }
        }
        if let Some(ids) = self.ids {
            are_all = false;
            let places: Vec<Place> = ids.iter().copied().map(Place::Vm).collect();
            of_places = Some(index.vms_at(&places));
        }
        are_all &= reach.is_exact && facets.len() <= 1;
        let sets = facets.iter().map(|facet| index.members(facet));
        let narrowest = sets.min_by_key(|members| members.vms.len());
        let narrowest = narrowest.unwrap_or_else(|| index.members(&Facet::Any));
        let members = match of_places {
            Some(reached) if reached.vms.len() < narrowest.vms.len() => Cow::Owned(reached),
            _ => Cow::Borrowed(narrowest),
        };
        Candidates { members, are_all }
    }
}

/// The VMs that a list looks at.
struct Candidates<'index> {
    members: Cow<'index, Members>,
    /// Whether each of them passes, so that only those of the page have to be read.
    are_all: bool,
}

fn wanted_tags(text: &str) -> Result<Vec<Tag>, Problem> {
    let tag = |text: &str| text.parse().map_err(|error: TagError| problems::invalid(format!("tag: {error}")));
    text.split(',').map(tag).collect()
}

/// Whether a text contains a part, ignoring case. Names are ASCII.
fn contains(text: &str, part: &str) -> bool {
    part.is_empty()
        || text.as_bytes().windows(part.len()).any(|here| here.eq_ignore_ascii_case(part.as_bytes()))
}

/// Returns the number of entries in a page.
pub fn limit(asked: Option<u32>) -> Result<usize, Problem> {
    match asked.unwrap_or(PAGE_DEFAULT) {
        limit @ 1..=PAGE_MAX => Ok(limit as usize),
        other => Err(problems::invalid(format!("limit: a page has 1 to {PAGE_MAX} entries, not {other}"))),
    }
}

/// Returns a page of a short list, sorted by its keys. `list` is the list's name in cursors.
///
/// # Errors
/// [`Problem`] for an invalid cursor or limit.
pub fn page_of<T>(
    list: &str,
    all: Vec<T>,
    query: &ListQuery,
    key: impl Fn(&T) -> String,
) -> Result<Page<T>, Problem> {
    let limit = limit(query.limit)?;
    let after = cursor::read(list, query.cursor.as_deref())?;
    let after = after.as_deref();
    let total = all.len() as u64;
    let mut rest: Vec<(String, T)> = all.into_iter().map(|item| (key(&item), item)).collect();
    rest.sort_by(|a, b| a.0.cmp(&b.0));
    rest.retain(|(key, _)| after.is_none_or(|after| key.as_str() > after));
    let next = rest.get(limit).and_then(|_| rest.get(limit - 1)).map(|(key, _)| cursor::after(list, key));
    Ok(Page { items: rest.into_iter().take(limit).map(|(_, item)| item).collect(), total, next })
}

/// Converts a saved memory for callers.
pub(super) fn memory_view(memory: &protocol::SavedMemory) -> SavedMemory {
    let protocol::SavedMemory { volume, bytes, at_unix_seconds } = *memory;
    SavedMemory { bytes, volume, at_unix_seconds }
}

fn dump_view(dump: &protocol::Dump) -> Dump {
    let protocol::Dump { number, volume, bytes, sealed_bytes, at_unix_seconds, label, .. } = dump.clone();
    Dump { number, bytes, sealed_bytes, volume, at_unix_seconds, label }
}

/// What the inventory says of a host.
struct HostFacts {
    maintenance: bool,
    fenced: Option<HostFenced>,
    memory_placed_bytes: u64,
    processor_lacks: Vec<ProcessorLack>,
}

fn host_view(seat: &HostSeat, facts: HostFacts) -> Host {
    let seen = seat.seen();
    let state = seen.state.as_ref();
    Host {
        id: seat.id,
        name: seat.name.to_string(),
        state: match (&seen.down, state) {
            (Some(_), _) => HostState::Disconnected,
            (None, Some(_)) => HostState::Connected,
            (None, None) => HostState::Unknown,
        },
        maintenance: facts.maintenance,
        fenced: facts.fenced,
        address: seat.address.clone(),
        version: state.map(|state| state.version.clone()),
        cpus: state.map_or(0, |state| state.cpus),
        cpu_model: state.and_then(|state| state.cpu_model.clone()),
        capabilities: state.and_then(|state| state.capabilities.clone()),
        processor_lacks: facts.processor_lacks,
        memory_bytes: state.map_or(0, |state| state.memory_bytes),
        memory_placed_bytes: facts.memory_placed_bytes,
        memory_free_bytes: state.map_or(0, |state| state.memory_available_bytes),
        accelerator: state.map(|state| match state.accelerator {
            protocol::Accelerator::Kvm => "kvm".to_owned(),
            protocol::Accelerator::Tcg => "tcg".to_owned(),
        }),
        programs: state.and_then(|state| state.programs.as_ref()).map(programs_view),
        boot_directories: state.map_or_else(Vec::new, |state| {
            state.boot_directories.iter().map(|directory| directory.display().to_string()).collect()
        }),
        crypto_safe: state.map(|state| match state.crypto_safe.state {
            protocol::CryptoSafeState::Incapable => "incapable".to_owned(),
            protocol::CryptoSafeState::Prepared => "prepared".to_owned(),
            protocol::CryptoSafeState::Safe => "safe".to_owned(),
            protocol::CryptoSafeState::PendingIncapable => "pending-incapable".to_owned(),
        }),
        crypto_safe_reasons: state.map_or_else(Vec::new, |state| state.crypto_safe.reasons.clone()),
        vms_running: state.map_or(0, |state| state.vms_running),
        operations_running: state.map_or(0, |state| state.operations_running),
        operations_waiting: state.map_or(0, |state| state.operations_queued),
    }
}

fn programs_view(programs: &protocol::Programs) -> HostPrograms {
    let shown = |path: Option<&PathBuf>| path.map(|path| path.display().to_string());
    let qemu = programs.qemu.as_ref();
    HostPrograms {
        qemu: shown(qemu.map(|qemu| &qemu.path)),
        qemu_version: qemu.map(|qemu| qemu.version.clone()),
        uefi: shown(programs.uefi.as_ref()),
        passt: shown(programs.passt.as_ref()),
        swtpm: shown(programs.swtpm.as_ref()),
    }
}

pub(super) fn policy_view(index: &Index, policy: &PolicyRecord) -> Policy {
    Policy {
        id: policy.id,
        name: policy.name.clone(),
        description: policy.description.clone(),
        rules: policy.rules.clone(),
        vms: index.members(&Facet::Policy(policy.id)).len() as u64,
        deviating: deviating(index, policy),
    }
}
