//! VMs that exist outside the inventory: lists a datastore's content, and registers one VM or all.
//!
//! The content of a datastore never decides about protection by itself: the inventory records which
//! disks of a registered VM are sealed and under which key, and an event reports it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use strongroom_api::datastore::{Found, RebuildDatastore, Standing};
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{DesiredPower, Lifecycle, Notes, RegisterVm, RestartPolicy};
use strongroom_api::{ErrorCode, Problem};
use strongroom_host::attestation;
use strongroom_host::protocol::{self, DiskName, JudgeRequest, VmGeneration, VolumeFacts};
use strongroom_types::{ProviderKey, VmId};
use uuid::Uuid;

use super::advance::{keep_volumes, volume_known};
use super::alarms::datastore_object;
use super::datastores::{keeps_tpms_in, looked_through};
use super::observe::Present;
use super::place::find_datastore;
use super::volume_changes::name_is_free;
use super::wishes::{Caller, name_of};
use super::{Control, HostSeat};
use crate::host::HostError;
use crate::inventory::{Draft, Index, Row};
use crate::keys::{GrantFor, KeyProblem};
use crate::problems;
use crate::records::{DatastoreRecord, Hardware, Mount, VmRecord, VolumeRecord};

/// A VM directory of a datastore.
struct There<'a> {
    vm: VmId,
    /// The host that runs the VM, or the first one that finds it.
    seat: &'a HostSeat,
    place: Present,
}

/// A VM directory, with the volumes in it.
struct Candidate<'a> {
    vm: VmId,
    seat: &'a HostSeat,
    present: Present,
    volumes: Vec<VolumeFacts>,
}

impl Control {
    /// Returns the content of a datastore, compared with the inventory.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn datastore_contents(&self, named: &str) -> Result<Vec<Found>, Problem> {
        let datastore = self.datastore(Some(named))?;
        let present = self.present_in(&datastore)?;
        let mut found = Vec::new();
        for there in &present {
            let twice = present.iter().filter(|other| other.vm == there.vm).count() > 1;
            let (standing, reason) = self.standing(there, twice);
            let directory = directory_name(&there.place);
            found.push(Found { directory, vm: Some(there.vm), standing, reason });
        }
        let there: BTreeSet<VmId> = present.iter().map(|there| there.vm).collect();
        let index = self.inventory.read();
        let missing = index
            .vms_in(datastore.id)
            .filter(|vm| vm.datastore == datastore.id && vm.lifecycle == Lifecycle::Present)
            .filter(|vm| !there.contains(&vm.id));
        found.extend(missing.map(|vm| Found {
            directory: vm.directory().to_string(),
            vm: Some(vm.id),
            standing: Standing::Missing,
            reason: Some("its directory is not there".to_owned()),
        }));
        found.sort_by(|a, b| a.directory.cmp(&b.directory));
        Ok(found)
    }

    fn standing(&self, there: &There<'_>, twice: bool) -> (Standing, Option<String>) {
        let directory = directory_name(&there.place);
        if let Some(known) = self.inventory.read().vm(there.vm) {
            if known.directory().as_str() == directory {
                let reason =
                    known.from_backup.then(|| "its record is from a backup of the inventory".to_owned());
                return (Standing::Registered, reason);
            }
            let reason = format!("a copy: VM {} has this id", known.name);
            return (Standing::Duplicate, Some(reason));
        }
        if twice {
            return (Standing::Duplicate, Some("another directory says that it is the same VM".to_owned()));
        }
        match candidate(there).and_then(|candidate| self.unknown_volumes(&candidate)) {
            Ok(()) => (Standing::Orphan, None),
            Err(problem) if problem.code == ErrorCode::VolumeKnown => {
                (Standing::Duplicate, Some(problem.message))
            }
            Err(problem) => (Standing::Broken, Some(problem.message)),
        }
    }

    /// Registers a VM.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn register_vm(&self, caller: &Caller, wish: &RegisterVm) -> Result<Task, Problem> {
        if let Some(known) = self.known_request(caller)? {
            return Ok(known);
        }
        let datastore = self.datastore(wish.datastore.as_deref())?;
        let present = self.present_in(&datastore)?;
        let found = present.iter().find(|there| directory_name(&there.place) == wish.directory.as_str());
        let Some(there) = found else {
            let message = format!("there is no VM {} in datastore {}", wish.directory, datastore.name);
            return Err(Problem::new(ErrorCode::NotFound, message)
                .next(format!("`strongroom datastore contents {}` lists what is in it", datastore.name)));
        };
        if present.iter().filter(|other| other.vm == there.vm).count() > 1 {
            let message = format!("there are several directories that say that they are VM {}", there.vm);
            return Err(Problem::new(ErrorCode::VolumeKnown, message)
                .next("all but one are copies; move them out of the datastore"));
        }
        let candidate = candidate(there)?;
        let task = self.register(caller, &datastore, &candidate, wish.accept_configuration)?;
        self.look_at_all(there.seat);
        Ok(task)
    }

    /// Registers every VM of a datastore that can be registered, to recover a lost inventory.
    /// Returns their number in the task.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn rebuild_datastore(
        &self,
        caller: &Caller,
        named: &str,
        wish: &RebuildDatastore,
    ) -> Result<Task, Problem> {
        if let Some(known) = self.known_request(caller)? {
            return Ok(known);
        }
        let datastore = self.datastore(Some(named))?;
        let present = self.present_in(&datastore)?;
        let each = caller.without_key();
        let mut places: BTreeMap<VmId, usize> = BTreeMap::new();
        for there in &present {
            *places.entry(there.vm).or_default() += 1;
        }
        let next = AtomicUsize::new(0);
        // Several at a time, since the store makes waiting transactions durable together.
        let register_some = || {
            let mut refused = Vec::new();
            while let Some(there) = present.get(next.fetch_add(1, Ordering::Relaxed)) {
                let from_backup = self.inventory.read().vm(there.vm).is_some_and(|known| known.from_backup);
                let registered = match self.standing(there, places[&there.vm] > 1) {
                    (Standing::Registered, _) if !from_backup => continue,
                    (Standing::Registered | Standing::Orphan, _) => candidate(there)
                        .and_then(|candidate| {
                            self.register(&each, &datastore, &candidate, wish.accept_configuration)
                        })
                        .map_err(|problem| problem.message),
                    (_, reason) => Err(reason.unwrap_or_default()),
                };
                refused.extend(registered.err().map(|reason| (directory_name(&there.place), reason)));
            }
            refused
        };
        let mut refused = std::thread::scope(|scope| {
            let registrars: Vec<_> = (0..REGISTRARS).map(|_| scope.spawn(register_some)).collect();
            let done = registrars.into_iter().flat_map(|registrar| registrar.join().unwrap_or_default());
            done.collect::<Vec<_>>()
        });
        refused.sort_unstable();
        self.hosts_of(&datastore)?.into_iter().for_each(|seat| self.look_at_all(seat));
        self.wish(caller, |_, id| {
            let object = datastore_object(&datastore);
            let mut draft = self.draft();
            // The datastore's contents show the others.
            for (directory, reason) in refused.iter().take(REFUSALS_TOLD) {
                let message = format!("{directory} was not registered: {reason}");
                draft = draft.event("datastore.refused", &object, message, Some(id));
            }
            Ok((self.task_done(id, TaskKind::DatastoreRebuild, object, caller), draft))
        })
    }

    fn register(
        &self,
        caller: &Caller,
        datastore: &Row<DatastoreRecord>,
        candidate: &Candidate<'_>,
        accept_configuration: bool,
    ) -> Result<Task, Problem> {
        let Some(spec) = &candidate.present.spec else {
            return Err(problems::conflict("its configuration cannot be read"));
        };
        if spec.tpm {
            keeps_tpms_in(candidate.seat, datastore)?;
        }
        let name = name_of(spec.name.as_str())?;
        let directory = spec.directory.as_ref().map(|directory| name_of(directory.as_str())).transpose()?;
        let hardware = Hardware::found(spec).map_err(problems::invalid)?;
        let mut accepted = self.doubts(candidate, spec)?;
        let is_attested = hardware.encrypted() && accepted.is_empty();
        if !is_attested {
            accepted.extend(hardware.ways_out());
        }
        let is_known = |policy: &Uuid| self.inventory.read().policies.contains(&policy.to_string());
        let policy = spec.policy.filter(is_known);
        if let (Some(lost), None) = (spec.policy, policy) {
            accepted.push(format!("its policy {lost} is not in this inventory"));
        }
        if !accept_configuration && !accepted.is_empty() {
            let message = format!(
                "VM {name} in datastore {} may not be what its owner made it: {}",
                datastore.name,
                accepted.join("; ")
            );
            return Err(problems::conflict(message).next(
                "compare that with what the VM should be, and register it with --accept-configuration",
            ));
        }
        let mut volumes = candidate.volumes.clone();
        if is_attested {
            // The attested volumes are the VM's, whatever is in the datastore now.
            let pinned = |disk: &DiskName| spec.disk(disk).and_then(|disk| disk.volume);
            for facts in &mut volumes {
                facts.volume = pinned(&facts.disk).unwrap_or(facts.volume);
            }
            volumes.extend(spec.own_volumes.iter().map(|own| VolumeFacts {
                disk: own.name.clone(),
                volume: own.volume,
                kek: None,
                generation: own.least_generation,
                size_bytes: None,
            }));
        }
        let runs = !candidate.present.power.is_off();
        self.wish(caller, |index, id| {
            let known = index.vm(candidate.vm);
            if known.is_some_and(|known| !known.from_backup) {
                return Err(problems::conflict(format!("VM {name} is registered already")));
            }
            if known.is_none() {
                name_is_free(index, &name)?;
            }
            let mut vm = VmRecord {
                id: candidate.vm,
                name: name.clone(),
                directory: directory.clone(),
                notes: Notes::default(),
                tags: BTreeSet::new(),
                datastore: datastore.id,
                host: candidate.seat.id,
                policy,
                folder: None,
                hardware: hardware.clone(),
                key_wish: None,
                renews_data_keys: false,
                lifecycle: Lifecycle::Present,
                desired: if runs { DesiredPower::Running } else { DesiredPower::Stopped },
                restart: RestartPolicy::default(),
                generation: candidate.present.generation,
                task: None,
                from_backup: false,
                created_unix_seconds: self.now_unix_ms() / 1000,
                data_keys_unix_seconds: None,
                prepared: 0,
                restarts_unix_ms: Vec::new(),
                origin: None,
                template: None,
                holds_volume: spec.holds_volume,
                was_encrypted: false,
            };
            check_places(index, &vm, candidate.seat)?;
            vm.take_lineage(&spec.lineage);
            let origins: Vec<VmId> = vm.origin.iter().map(|origin| origin.vm).chain(vm.shared()).collect();
            let mut origins = origins.into_iter().filter_map(|origin| index.vm(origin));
            vm.was_encrypted = origins.any(|origin| origin.is_or_was_encrypted());
            if let Some(known) = known {
                vm = known_better(known, vm);
            }
            let others = index.other_datastores_of(&vm);
            let mut draft = others.into_iter().fold(self.draft(), Draft::unchanged);
            for volume in known.iter().flat_map(|known| known.hardware.volumes()) {
                if volumes.iter().all(|facts| facts.volume != volume) {
                    draft = draft.discard::<VolumeRecord>(&volume.to_string());
                }
            }
            let kept = keep_volumes(index, &mut vm, &volumes, draft)?;
            let mut draft = match known {
                Some(known) => kept.replace(known, &vm),
                None => kept.create_named(&vm),
            };
            let sealed = match vm.hardware.clear_disks().count() {
                0 => "all its disks are encrypted".to_owned(),
                clear => format!("{clear} of its disks are not encrypted"),
            };
            let vouched = if is_attested { ", as its keys vouch for it" } else { "" };
            let message = match accepted.as_slice() {
                [] => format!("VM {name} was registered{vouched}; {sealed}"),
                accepted => {
                    let (by, accepted) = (&caller.name, accepted.join("; "));
                    format!("VM {name} was registered, and {by} accepts that {accepted}; {sealed}")
                }
            };
            draft = draft.event("vm.registered", &vm.object(), message, Some(id));
            Ok((self.task_done(id, TaskKind::VmRegister, vm.object(), caller), draft))
        })
    }

    /// Returns the objections to an encrypted VM as its supervisor made it. An unencrypted VM
    /// cannot be judged.
    fn doubts(&self, candidate: &Candidate<'_>, spec: &protocol::VmSpec) -> Result<Vec<String>, Problem> {
        let keys: Vec<ProviderKey> = attestation::keys(spec).into_iter().cloned().collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let seat = candidate.seat;
        let generation = VmGeneration(candidate.present.generation);
        let mut grants = Vec::new();
        // Each grant is for one key, once.
        for _ in 0..keys.len() {
            match self.keys.grant(candidate.vm, generation, GrantFor::Current, seat.name.as_str(), &keys) {
                Ok(more) => grants.extend(more),
                Err(KeyProblem::Unavailable(reason) | KeyProblem::Refused(reason)) => {
                    return Ok(vec![format!("its configuration cannot be verified: {reason}")]);
                }
            }
        }
        let request = JudgeRequest { spec: Box::new(spec.clone()), grants };
        match seat.host.judge(&request) {
            Ok(judged) => Ok(judged.doubts),
            Err(HostError::Refused(problem)) => {
                Ok(vec![format!("its configuration cannot be verified: {}", problem.message)])
            }
            Err(error) => Err(problems::host(seat.name.as_str(), &error)),
        }
    }

    fn unknown_volumes(&self, candidate: &Candidate<'_>) -> Result<(), Problem> {
        let index = self.inventory.read();
        candidate.volumes.iter().try_for_each(|facts| match index.volume(facts.volume) {
            Some(known) => Err(volume_known(facts, known)),
            None => Ok(()),
        })
    }

    fn datastore(&self, named: Option<&str>) -> Result<Row<DatastoreRecord>, Problem> {
        find_datastore(&self.inventory.read(), named).cloned()
    }

    /// The hosts of a datastore. All of them are asked: a VM of which one finds a directory may run
    /// on another.
    fn hosts_of(&self, datastore: &DatastoreRecord) -> Result<Vec<&HostSeat>, Problem> {
        let seat = |mount: &Mount| {
            self.seat(mount.host).ok_or_else(|| {
                let message = format!("a host of datastore {} is not one that is asked here", datastore.name);
                Problem::new(ErrorCode::HostUnavailable, message)
            })
        };
        datastore.mounts().map(seat).collect()
    }

    /// Returns the VM directories of a datastore, as its hosts find them now.
    fn present_in(&self, datastore: &DatastoreRecord) -> Result<Vec<There<'_>>, Problem> {
        let mut present: Vec<There<'_>> = Vec::new();
        for (seat, mount) in self.hosts_of(datastore)?.into_iter().zip(datastore.mounts()) {
            let failed = |error| problems::host(seat.name.as_str(), &error);
            // Other programs may have added or removed VMs.
            seat.host.look_through(&looked_through(mount)).map_err(failed)?;
            let all = seat.host.vms().map_err(failed)?;
            let below = std::path::Path::new(&mount.path);
            let before = present.len();
            for vm in all.vms.iter().filter(|vm| vm.directory.parent() == Some(below)) {
                let there = There { vm: vm.vm, seat, place: Present::from(vm) };
                let is_same = |known: &There<'_>| {
                    known.vm == there.vm && directory_name(&known.place) == directory_name(&there.place)
                };
                match present[..before].iter_mut().find(|known| is_same(known)) {
                    Some(_) if there.place.power.is_off() => {}
                    Some(known) => *known = there,
                    None => present.push(there),
                }
            }
        }
        Ok(present)
    }
}

/// The record of a VM whose former one is from a backup: what its host has is true, and what hosts
/// do not know is as it was.
fn known_better(known: &VmRecord, found: VmRecord) -> VmRecord {
    let VmRecord { datastore, host, hardware, desired, generation, origin, .. } = found;
    VmRecord {
        datastore,
        host,
        hardware,
        desired,
        origin,
        generation: generation.max(known.generation),
        from_backup: false,
        renews_data_keys: false,
        key_wish: None,
        ..known.clone()
    }
}

/// How many VMs of a datastore are registered in parallel.
const REGISTRARS: usize = 16;
/// The most refusals of one rebuild that become events.
const REFUSALS_TOLD: usize = 50;

pub(super) fn directory_name(place: &Present) -> String {
    place.directory.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Checks that the datastores of disks of a VM that was found are those of this inventory, and of
/// its host.
fn check_places(index: &Index, vm: &VmRecord, seat: &HostSeat) -> Result<(), Problem> {
    for (disk, id) in vm.hardware.disks.iter().filter_map(|disk| Some((disk, disk.datastore?))) {
        let known = index.datastores.get(&id.to_string());
        if known.is_some_and(|known| known.on(seat.id).is_some()) && id != vm.datastore {
            continue;
        }
        let (name, host) = (&disk.name, &seat.name);
        let message = match known {
            Some(known) => format!(
                "{name} of VM {} is said to be in datastore {}, which host {host} does not reach beside this one",
                vm.name, known.name
            ),
            None => format!("{name} of VM {} is in datastore {id}, which is not in this inventory", vm.name),
        };
        return Err(problems::conflict(message)
            .next("have the host use it: `strongroom datastore add`, or `strongroom datastore add-host`"));
    }
    Ok(())
}

fn candidate<'a>(There { vm, seat, place }: &There<'a>) -> Result<Candidate<'a>, Problem> {
    let (vm, seat) = (*vm, *seat);
    let Some(spec) = &place.spec else {
        return Err(problems::conflict(format!(
            "the configuration in {} cannot be read",
            place.directory.display()
        )));
    };
    // A swap disk has a volume only while the VM runs.
    let data = spec.disks.iter().filter(|disk| disk.kind == protocol::DiskKind::Data);
    let volumes = data.map(|disk| {
        let volume = seat.host.volume(vm, &disk.name);
        let volume = volume.map_err(|error| problems::host(seat.name.as_str(), &error))?;
        let kek = match &disk.key {
            protocol::DiskKey::Provider { kek, .. } | protocol::DiskKey::HalfClear { kek, .. } => *kek,
            protocol::DiskKey::Unencrypted => None,
        };
        Ok(VolumeFacts {
            disk: disk.name.clone(),
            volume,
            kek,
            generation: disk.least_generation,
            size_bytes: None,
        })
    });
    let volumes = volumes.collect::<Result<_, Problem>>()?;
    Ok(Candidate { vm, seat, present: place.clone(), volumes })
}
