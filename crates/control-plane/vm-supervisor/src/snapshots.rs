//! Makes, reverts to and deletes the snapshots of a VM, running or off.
//!
//! ```text
//! create  vm.json says "changing" -> every volume has it, of one instant -> vm.json lists it
//!         between the two, if asked for: the guest's file systems are frozen, and thawed afterwards
//! revert  vm.json says "changing" -> each volume: content kept, then reverted -> the snapshot's memory is put back -> vm.json: the new sizes, suspended
//! delete  vm.json says "changing" -> no volume has it any more, its memory is gone -> vm.json without it
//! part    vm.json says "changing" -> every volume has it, of one instant with other VMs' -> (the group is decided) -> vm.json lists it
//! ```
//!
//! A snapshot that `vm.json` does not list does not exist, whatever volumes have it. What an
//! interrupted creation or deletion left is removed by the next change. An interrupted revert is
//! continued by the next one, and the VM does not start until then.
//!
//! Swap disks belong to a snapshot with memory, and only to that. The TPM's state is part of the
//! memory; a revert has it put back only if its request says so, and records with which memory.
//!
//! `vm.json` is not trusted: the descriptors, which the VM's key authenticates, say which volumes
//! have a snapshot. A revert takes every volume that has it, and is refused if one that `vm.json`
//! lists has not.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use strongroom_datastore::file::storage::is_gone;
use strongroom_datastore::file::{
    Access, AddLayerOptions, Descriptor, NewSnapshot, OpenOptions, Protection, authenticated,
    create_snapshot, delete_snapshot, describe, revert,
};
use strongroom_host::protocol::{
    Contents, Disk, DiskKind, DiskName, NewVmSnapshot, OwnVolume, Problem, Progress, ProgressUnit,
    SavedMemory, SnapshotChange, VmSnapshots, VmSpec,
};
use strongroom_host::served::served;
use strongroom_host::vm_directory::VmRecord;
use strongroom_keys::Kek;
use strongroom_types::{SnapshotId, VolumeSize};
use strongroom_worker::control::{
    Answer, Client, ControlError, GroupError, GroupRecord, GroupVolume, GroupedSnapshot, Peer, Request,
    SNAPSHOT_WITHIN, SnapshotGroup,
};
use strongroom_worker::{MergeError, Progress as Transferred, complete, merge_next};

use crate::group_part::Orders;
use crate::guest_agent::{Frozen, GuestAgent};
use crate::job::key_problem;
use crate::keys::VmKeys;
use crate::memory::{self, Guest, KeptMemory, Saving};
use crate::own_volume::{LOCK_WAIT, hold_key, protection};
use crate::transfer::qmp_problem;
use crate::{swap, vtpm};

/// Whether the VM's volumes are served, by threads of this process.
#[derive(Clone, Copy)]
pub enum Serving<'a> {
    /// The VM is off.
    No,
    /// The VM runs: its memory can be saved, and its guest's file systems can be frozen.
    Yes(&'a Saving, &'a GuestAgent),
}

/// Changes the snapshots of a VM. Returns the VM's configuration with the generations, and after a
/// revert the sizes, that its volumes have now.
///
/// # Errors
/// If a key is unavailable, a volume is damaged or in use, or the change is refused. The next
/// change removes or continues what has been done.
pub fn change(
    keys: &VmKeys,
    vm: &VmSpec,
    change: &SnapshotChange,
    serving: Serving<'_>,
    tell: impl FnMut(Progress) -> Result<(), Problem>,
) -> Result<VmSpec, Problem> {
    let mut changing = Changing { keys, vm: vm.clone(), serving, tell };
    changing.run(change)?;
    Ok(changing.vm)
}

/// Makes a running VM's part of a group's snapshot, by hostd's orders. `vm.json` lists it when it
/// is kept. Returns the VM's configuration with the generations that its volumes have now.
///
/// # Errors
/// As [`change`]; also if an order does not come, or comes after the lease. Then there is no part.
pub fn take_part(
    keys: &VmKeys,
    vm: &VmSpec,
    snapshot: &NewVmSnapshot,
    (saving, agent): (&Saving, &GuestAgent),
    orders: &Orders,
    tell: impl FnMut(Progress) -> Result<(), Problem>,
) -> Result<VmSpec, Problem> {
    let mut changing = Changing { keys, vm: vm.clone(), serving: Serving::Yes(saving, agent), tell };
    changing.settle(&SnapshotChange::Prepare { snapshot: snapshot.clone() })?;
    changing.part(snapshot, |changing, volumes| {
        let Some(within) = snapshot.quiesce_within_s else {
            return changing.part_served(snapshot, volumes, orders);
        };
        let frozen = agent.freeze(within, &saving.abandoned)?;
        let made = changing.part_served(snapshot, volumes, orders);
        let thawed = frozen.thaw();
        made?;
        thawed.map(drop)
    })?;
    Ok(changing.vm)
}

/// Returns the snapshots that `vm.json` lists.
///
/// # Errors
/// If it cannot be read.
pub fn read(vm: &VmSpec) -> Result<VmSnapshots, Problem> {
    Ok(VmRecord::read_of(&vm.directory(), vm.id)?.snapshots)
}

struct Changing<'a, Tell> {
    keys: &'a VmKeys,
    /// The configuration, with what is known of the volumes now.
    vm: VmSpec,
    serving: Serving<'a>,
    tell: Tell,
}

/// A volume with its key and its authenticated descriptor.
struct Volume {
    name: DiskName,
    path: PathBuf,
    kek: Option<Arc<Kek>>,
    descriptor: Descriptor,
    /// Whether its content ends with the guest, unless its memory stays.
    is_swap: bool,
}

/// What a revert does beside the content of the disks.
#[derive(Clone, Copy)]
struct RevertOptions {
    /// Deletes the snapshot that keeps the present content.
    discard: bool,
    /// Leaves the memory.
    disks_only: bool,
    /// Puts the TPM's state back with the memory.
    tpm: bool,
}

impl Volume {
    fn protection(&self) -> Protection<'_> {
        protection(self.kek.as_deref())
    }

    fn has(&self, snapshot: SnapshotId) -> bool {
        self.descriptor.snapshot(snapshot).is_some()
    }

    /// The size that it had at the instant of a snapshot.
    fn size_at(&self, snapshot: SnapshotId) -> Option<VolumeSize> {
        let layer = self.descriptor.snapshot(snapshot)?.layer;
        self.descriptor.layers.iter().find(|found| found.id == layer)?.size_bytes
    }

    fn to_open(&self) -> OpenOptions<'_> {
        OpenOptions {
            protection: self.protection(),
            access: Access::ReadWrite,
            lock_wait: LOCK_WAIT,
            least_generation: self.descriptor.generation,
        }
    }

    fn to_add_a_layer(&self) -> AddLayerOptions<'_> {
        AddLayerOptions {
            protection: self.protection(),
            log_bytes: None,
            lock_wait: LOCK_WAIT,
            least_generation: self.descriptor.generation,
        }
    }
}

impl<Tell: FnMut(Progress) -> Result<(), Problem>> Changing<'_, Tell> {
    fn run(&mut self, change: &SnapshotChange) -> Result<(), Problem> {
        self.settle(change)?;
        match change {
            SnapshotChange::Create { snapshot } => self.create(snapshot),
            SnapshotChange::Revert { to, keep, discard, disks_only, tpm } => {
                let (discard, disks_only, tpm) = (*discard, *disks_only, *tpm);
                self.revert(*to, keep, RevertOptions { discard, disks_only, tpm })
            }
            SnapshotChange::Delete { snapshot } => self.delete(*snapshot),
            SnapshotChange::Prepare { snapshot } => self.part_while_off(snapshot),
            SnapshotChange::Keep { snapshot } => self.keep(snapshot),
        }
    }

    /// Removes what an interrupted creation or deletion left.
    fn settle(&mut self, next: &SnapshotChange) -> Result<(), Problem> {
        let all = read(&self.vm)?;
        match all.changing.clone() {
            None => Ok(()),
            Some(SnapshotChange::Prepare { snapshot }) if matches!(next, SnapshotChange::Keep { snapshot: kept } if kept.id == snapshot.id) => {
                Ok(())
            }
            Some(SnapshotChange::Create { snapshot } | SnapshotChange::Prepare { snapshot }) => {
                self.remove_parts(snapshot.id)?;
                self.end(|_| {})
            }
            // It is one step, and nothing records that it begins.
            Some(SnapshotChange::Keep { .. }) => self.end(|_| {}),
            Some(SnapshotChange::Delete { snapshot }) => self.delete(snapshot),
            // The next revert continues it.
            Some(SnapshotChange::Revert { .. }) if matches!(next, SnapshotChange::Revert { .. }) => Ok(()),
            Some(SnapshotChange::Revert { .. }) => all.check_whole(&self.vm.name),
        }
    }

    fn create(&mut self, snapshot: &NewVmSnapshot) -> Result<(), Problem> {
        if read(&self.vm)?.get(snapshot.id).is_some() {
            // An earlier request has made it.
            return Ok(());
        }
        self.begin(&SnapshotChange::Create { snapshot: snapshot.clone() }, |all| all.check_new(snapshot))?;
        let volumes = if snapshot.memory { self.volumes_and_swap() } else { self.volumes() }?;
        let contents = self.make(snapshot, &volumes).inspect_err(|_| self.leave_no_part_of(snapshot.id))?;
        self.end(|record| record.snapshots.add(snapshot, names(&volumes), contents))
    }

    /// Removes what a failed creation has made. What stays behind is removed by the next change.
    fn leave_no_part_of(&mut self, snapshot: SnapshotId) {
        // As long as the guest may be frozen, a later supervisor must know.
        let may_end = !matches!(self.serving, Serving::Yes(_, agent) if agent.owes_thaw());
        let removed = self.remove_parts(snapshot);
        let removed = removed.and_then(|()| if may_end { self.end(|_| {}) } else { Ok(()) });
        let _ = removed.inspect_err(|left| tracing::warn!("VM {}: {left}", self.vm.name));
    }

    /// Makes the VM's part of a group's snapshot. `vm.json` says that it is being made until it is
    /// kept.
    fn part(
        &mut self,
        snapshot: &NewVmSnapshot,
        make: impl FnOnce(&mut Self, &[Volume]) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        if snapshot.memory {
            let message = "a snapshot of several VMs has no memory of theirs";
            return Err(Problem::new("bad_request", message).with_next_step("leave out the memory"));
        }
        self.begin(&SnapshotChange::Prepare { snapshot: snapshot.clone() }, |all| all.check_new(snapshot))?;
        let volumes = self.volumes()?;
        make(self, &volumes).inspect_err(|_| self.leave_no_part_of(snapshot.id))?;
        self.record(|_| {})
    }

    /// The part of a VM that is off, whose content stays as it is: hostd starts none while it makes
    /// a group.
    fn part_while_off(&mut self, snapshot: &NewVmSnapshot) -> Result<(), Problem> {
        if let Serving::Yes(..) = self.serving {
            let message = format!("VM {} runs, and makes its part by hostd's orders", self.vm.name);
            return Err(Problem::new("running", message).with_next_step("try it again"));
        }
        // Without a guest nothing is to be frozen.
        let snapshot = NewVmSnapshot { quiesce_within_s: None, ..snapshot.clone() };
        self.part(&snapshot, |changing, volumes| {
            changing.each(volumes, |volume| snapshot_of(volume, &snapshot).map(Some))
        })
    }

    fn part_served(
        &mut self,
        snapshot: &NewVmSnapshot,
        volumes: &[Volume],
        orders: &Orders,
    ) -> Result<(), Problem> {
        orders.await_prepare()?;
        let group = group_of(snapshot, volumes);
        let prepared = group.prepare().map_err(|error| group_problem(&error))?;
        let lease = match orders.await_freeze() {
            Ok(lease) => lease,
            Err(problem) => {
                prepared.abandon();
                return Err(problem);
            }
        };
        let frozen = prepared.freeze(lease).map_err(|error| group_problem(&error))?;
        if let Err(problem) = orders.await_commit(lease) {
            frozen.abandon();
            return Err(problem);
        }
        let made = frozen.commit().map_err(|error| group_problem(&error))?;
        self.learn_made(snapshot, volumes, &made);
        Ok(())
    }

    /// Lists a part of a group's snapshot that the VM's volumes have. The descriptors decide, and
    /// not what `vm.json` says.
    fn keep(&mut self, snapshot: &NewVmSnapshot) -> Result<(), Problem> {
        let all = read(&self.vm)?;
        if all.get(snapshot.id).is_some() {
            // An earlier request has listed it.
            return Ok(());
        }
        let volumes = self.volumes()?;
        if let Some(missing) = volumes.iter().find(|volume| !volume.has(snapshot.id)) {
            let message =
                format!("{} of VM {} has no snapshot {}", missing.name, self.vm.name, snapshot.name);
            return Err(Problem::new("incomplete_snapshot", message)
                .with_next_step("delete that snapshot, and make another one"));
        }
        let quiesced = all.changing.as_ref().is_some_and(SnapshotChange::freezes_guest);
        let contents = Contents { quiesced, ..Contents::default() };
        self.end(|record| record.snapshots.add(snapshot, names(&volumes), contents))
    }

    fn make(&mut self, snapshot: &NewVmSnapshot, volumes: &[Volume]) -> Result<Contents, Problem> {
        let of_disks = Contents::default();
        match (self.serving, snapshot.memory, snapshot.quiesce_within_s) {
            (_, true, Some(_)) => {
                let message = "a snapshot with memory has what the guest has not written, too";
                Err(Problem::new("bad_request", message).with_next_step("leave out one of the two"))
            }
            (Serving::Yes(saving, _), true, None) => {
                let memory = self.create_with_memory(saving, snapshot, volumes)?;
                Ok(Contents { memory: Some(memory), ..of_disks })
            }
            (Serving::Yes(saving, agent), false, Some(within)) => {
                let frozen = agent.freeze(within, &saving.abandoned)?;
                self.create_quiesced(frozen, snapshot, volumes)?;
                Ok(Contents { quiesced: true, ..of_disks })
            }
            (Serving::Yes(..), false, None) => self.create_served(snapshot, volumes).map(|()| of_disks),
            (Serving::No, true, None) => {
                let message = format!("VM {} is off, and has no memory", self.vm.name);
                Err(Problem::new("not_running", message).with_next_step("make a snapshot without memory"))
            }
            // Without a guest nothing is to be frozen.
            (Serving::No, false, _) => {
                self.each(volumes, |volume| snapshot_of(volume, snapshot).map(Some)).map(|()| of_disks)
            }
        }
    }

    /// Makes the snapshot while the file systems of the guest are frozen. They are thawed whatever
    /// comes of it, and the snapshot counts only if they were frozen all the time.
    fn create_quiesced(
        &mut self,
        frozen: Frozen<'_>,
        snapshot: &NewVmSnapshot,
        volumes: &[Volume],
    ) -> Result<(), Problem> {
        let made = self.create_served(snapshot, volumes);
        let thawed = frozen.thaw();
        made?;
        tracing::info!(
            "VM {}: the file systems of its guest were frozen for {} ms while its disks got snapshot {}",
            self.vm.name,
            thawed?.as_millis(),
            snapshot.name
        );
        Ok(())
    }

    /// Saves the memory of a guest that runs, and makes the snapshot of its disks while it is
    /// paused for the rest of its memory. It goes on before its memory is durable.
    fn create_with_memory(
        &mut self,
        saving: &Saving,
        snapshot: &NewVmSnapshot,
        volumes: &[Volume],
    ) -> Result<SavedMemory, Problem> {
        let monitor = saving.machine.qemu().monitor();
        let runs = monitor.status().map_err(qmp_problem)?.running;
        let which = OwnVolume::SnapshotMemory(snapshot.id);
        let copied = saving.copy(which, Guest::Runs, |progress| drop((self.tell)(progress)))?;
        let paused = Instant::now();
        let made = self.create_served(snapshot, volumes);
        if runs {
            monitor.cont().map_err(qmp_problem)?;
        }
        tracing::info!(
            "VM {}: its guest waited for {} us while its disks got snapshot {}",
            self.vm.name,
            paused.elapsed().as_micros(),
            snapshot.name
        );
        made?;
        copied.finish()
    }

    fn create_served(&mut self, snapshot: &NewVmSnapshot, volumes: &[Volume]) -> Result<(), Problem> {
        let made = group_of(snapshot, volumes).make().map_err(|error| group_problem(&error))?;
        self.learn_made(snapshot, volumes, &made);
        Ok(())
    }

    /// Takes over the generations of the volumes' descriptors after a snapshot.
    fn learn_made(&mut self, snapshot: &NewVmSnapshot, volumes: &[Volume], made: &[GroupedSnapshot]) {
        for (volume, made) in volumes.iter().zip(made) {
            tracing::info!(
                "VM {}: snapshot {} of {}: its guest waited for {} us",
                self.vm.name,
                snapshot.name,
                volume.name,
                made.stall_microseconds
            );
            self.learn(volume, made.generation);
        }
    }

    /// Notes the generation of a volume that lasts. A swap disk is another volume at each start.
    fn learn(&mut self, volume: &Volume, generation: u64) {
        if !volume.is_swap {
            self.vm.raise_generation(&volume.name, generation);
        }
    }

    fn delete(&mut self, snapshot: SnapshotId) -> Result<(), Problem> {
        let all = read(&self.vm)?;
        if all.get(snapshot).is_none() && all.changing.is_none() {
            return Ok(());
        }
        self.begin(&SnapshotChange::Delete { snapshot }, |_| Ok(()))?;
        self.remove_parts(snapshot)?;
        self.end(|record| record.snapshots.remove(snapshot))
    }

    /// Removes a snapshot from the volumes, and its memory.
    fn remove_parts(&mut self, snapshot: SnapshotId) -> Result<(), Problem> {
        let volumes = self.volumes_and_swap()?;
        let serving = self.serving;
        self.each(&volumes, |volume| match serving {
            Serving::Yes(..) => delete_served(volume, snapshot),
            Serving::No => delete_and_merge(volume, snapshot).map(Some),
        })?;
        if let Serving::No = serving {
            swap::remove_all(&self.vm, self.keys).map_err(|error| error.problem())?;
        }
        memory::remove(&self.vm, OwnVolume::SnapshotMemory(snapshot))
    }

    fn revert(
        &mut self,
        to: SnapshotId,
        keep: &NewVmSnapshot,
        RevertOptions { discard, disks_only, tpm }: RevertOptions,
    ) -> Result<(), Problem> {
        if let Serving::Yes(..) = self.serving {
            let message = format!("VM {} runs, and its disks cannot change under its guest", self.vm.name);
            return Err(Problem::new("running", message).with_next_step("stop it first"));
        }
        let (all, unfinished) = {
            let record = VmRecord::read_of(&self.vm.directory(), self.vm.id)?;
            if record.suspended.is_some() {
                let message =
                    format!("VM {} is suspended: its memory fits its disks as they are", self.vm.name);
                let next = "start it and shut it down, or start it with --discard-memory";
                return Err(Problem::new("suspended", message).with_next_step(next));
            }
            let unfinished = match &record.snapshots.changing {
                Some(SnapshotChange::Revert { keep, .. }) => Some(keep.clone()),
                _ => None,
            };
            (record.snapshots, unfinished)
        };
        if all.get(keep.id).is_some() && unfinished.is_none() {
            // An earlier request has reverted it.
            return if discard { self.delete(keep.id) } else { Ok(()) };
        }
        let no_snapshot =
            || Problem::new("no_such_snapshot", format!("VM {} has no snapshot {to}", self.vm.name));
        let listed = all.get(to).ok_or_else(no_snapshot)?;
        let with_memory = listed.memory.is_some() && !disks_only;
        if with_memory && self.vm.tpm && !tpm {
            return Err(listed.puts_tpm_back(self.vm.name.as_str()));
        }
        let volumes = if with_memory { self.volumes_and_swap() } else { self.volumes() }?;
        let is_left = |name: &DiskName| !with_memory && is_swap(&self.vm, name);
        let has = |name: &DiskName| volumes.iter().any(|volume| volume.name == *name && volume.has(to));
        let lacks = |name: &&DiskName| !has(name) && !is_left(name);
        if let Some(missing) = listed.volumes.iter().find(lacks) {
            let message = format!("{missing} of VM {} has no snapshot {}", self.vm.name, listed.name);
            return Err(Problem::new("incomplete_snapshot", message)
                .with_next_step("revert to another one; this one was deleted in part, or tampered with"));
        }
        let memory = match listed.memory.as_ref().filter(|_| !disks_only) {
            Some(memory) => Some(self.kept_memory(&volumes, to, memory)?),
            None => None,
        };
        // What the VM had before an interrupted revert is kept already, where that has begun.
        let keep = unfinished.as_ref().unwrap_or(keep);
        let begun = SnapshotChange::Revert { to, keep: keep.clone(), discard, disks_only, tpm };
        self.begin(&begun, |all| if unfinished.is_some() { Ok(()) } else { all.check_new(keep) })?;
        self.each(&volumes, |volume| {
            if !volume.has(to) {
                return if volume.is_swap { Ok(None) } else { snapshot_of(volume, keep).map(Some) };
            }
            complete(&volume.path, &volume.to_open()).map_err(merge_problem)?;
            let new = NewSnapshot { id: keep.id, name: keep.name.clone() };
            // What is swapped out now is of no use without a memory.
            let keep = (!volume.is_swap && !volume.has(keep.id)).then_some(&new);
            Ok(Some(revert(&volume.path, to, keep, &volume.to_add_a_layer())?.generation))
        })?;
        let now = self.volumes()?;
        for disk in &mut self.vm.disks {
            if let Some(volume) = now.iter().find(|volume| volume.name == disk.name && volume.has(to)) {
                disk.size_bytes = volume.descriptor.size_bytes;
            }
        }
        let suspended = match memory {
            Some(memory) => {
                let key = hold_key(self.keys, &self.vm, OwnVolume::Memory);
                let key = key.map_err(|error| error.problem())?;
                let memory = memory.put_back(&self.vm, key.as_deref(), &mut self.tell)?;
                if self.vm.tpm {
                    vtpm::go_on_with(&self.vm, self.keys, Some(memory.volume))
                        .map_err(|error| error.problem())?;
                }
                Some(memory)
            }
            None => None,
        };
        self.end(|record| {
            record.snapshots.add(keep, names(&now), Contents::default());
            record.snapshots.current = Some(to);
            record.suspended = suspended;
        })?;
        if discard { self.delete(keep.id) } else { Ok(()) }
    }

    /// Opens the memory of a snapshot that a revert puts back.
    fn kept_memory(
        &mut self,
        volumes: &[Volume],
        to: SnapshotId,
        memory: &SavedMemory,
    ) -> Result<KeptMemory, Problem> {
        let mut then = self.vm.clone();
        let has = |name: &DiskName| volumes.iter().find(|volume| volume.name == *name && volume.has(to));
        for disk in &mut then.disks {
            let size = has(&disk.name).and_then(|volume| volume.size_at(to));
            disk.size_bytes = size.unwrap_or(disk.size_bytes);
        }
        let key = hold_key(self.keys, &self.vm, OwnVolume::SnapshotMemory(to));
        let key = key.map_err(|error| error.problem())?;
        let is_part = |name: &DiskName| has(name).is_some();
        KeptMemory::open(&then, key.as_deref(), (to, memory), is_part, &mut self.tell)
    }

    /// Records that a change begins.
    fn begin(
        &self,
        change: &SnapshotChange,
        check: impl FnOnce(&VmSnapshots) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        VmRecord::change(&self.vm, |record| {
            check(&record.snapshots)?;
            record.snapshots.changing = Some(change.clone());
            Ok(())
        })
    }

    /// Records that the change has ended, with its result and the volumes' generations.
    fn end(&self, result: impl FnOnce(&mut VmRecord)) -> Result<(), Problem> {
        self.record(|record| {
            result(record);
            record.snapshots.changing = None;
        })
    }

    /// Changes `vm.json`, and records the volumes' generations.
    fn record(&self, change: impl FnOnce(&mut VmRecord)) -> Result<(), Problem> {
        VmRecord::change(&self.vm, |record| {
            change(record);
            record.become_attested(&self.vm, |key, what| self.keys.attest(key, what)).map_err(key_problem)
        })
    }

    /// Returns the volumes that belong to a snapshot: what the guest keeps on its disks.
    fn volumes(&self) -> Result<Vec<Volume>, Problem> {
        self.volumes_that(|disk| disk.kind == DiskKind::Data)
    }

    /// As [`volumes`](Self::volumes), with the swap disks that there are.
    fn volumes_and_swap(&self) -> Result<Vec<Volume>, Problem> {
        let exists = |disk: &Disk| !is_gone(&self.vm.volume_path(&disk.name));
        self.volumes_that(|disk| disk.kind == DiskKind::Data || exists(disk))
    }

    fn volumes_that(&self, belongs: impl Fn(&Disk) -> bool) -> Result<Vec<Volume>, Problem> {
        let seed = OwnVolume::Seed.name();
        let belongs = |disk: &Disk| belongs(disk) && disk.name.as_str() != seed;
        served(&self.vm).into_iter().filter(belongs).map(|disk| self.volume(disk)).collect()
    }

    /// Reads a volume's descriptor, and verifies it with the VM's key. Takes no lock: the process
    /// that serves a volume replaces descriptors atomically.
    fn volume(&self, disk: Disk) -> Result<Volume, Problem> {
        let path = self.vm.volume_path(&disk.name);
        let described = describe(&path)?.descriptor;
        let kek = self.keys.hold_for(&disk.key, Some(&described)).map_err(key_problem)?;
        let descriptor = authenticated(&path, protection(kek.as_deref()), disk.least_generation)?;
        descriptor.expect_volume(&path, disk.volume)?;
        Ok(Volume { name: disk.name, path, kek, descriptor, is_swap: disk.kind == DiskKind::Swap })
    }

    /// Does a part of the change to each volume, which returns the generation of its descriptor if
    /// there is a new one.
    fn each(
        &mut self,
        volumes: &[Volume],
        mut work: impl FnMut(&Volume) -> Result<Option<u64>, Problem>,
    ) -> Result<(), Problem> {
        for (done, volume) in volumes.iter().enumerate() {
            let (done, total) = (done as u64, volumes.len() as u64);
            (self.tell)(Progress::new(done, total, ProgressUnit::Volumes))?;
            if let Some(generation) = work(volume)? {
                self.learn(volume, generation);
            }
        }
        Ok(())
    }
}

fn names(volumes: &[Volume]) -> Vec<DiskName> {
    volumes.iter().map(|volume| volume.name.clone()).collect()
}

fn is_swap(vm: &VmSpec, name: &DiskName) -> bool {
    vm.disks.iter().any(|disk| disk.name == *name && disk.kind == DiskKind::Swap)
}

/// The snapshot as one of volumes that threads of this process serve.
fn group_of(snapshot: &NewVmSnapshot, volumes: &[Volume]) -> SnapshotGroup {
    let NewVmSnapshot { id, name, .. } = snapshot.clone();
    let group = |volume: &Volume| GroupVolume {
        path: volume.path.clone(),
        least_generation: volume.descriptor.generation,
    };
    let volumes = volumes.iter().map(group).collect();
    // `vm.json` lists it, or does not.
    SnapshotGroup { id, name, volumes, peer: Peer::ThisProcess, record: GroupRecord::Callers }
}

fn group_problem(error: &GroupError) -> Problem {
    Problem::new(error.code(), error.to_string())
}

/// Makes a snapshot of a volume that is not served. Returns the generation of its descriptor.
fn snapshot_of(volume: &Volume, snapshot: &NewVmSnapshot) -> Result<u64, Problem> {
    if volume.has(snapshot.id) {
        return Ok(volume.descriptor.generation);
    }
    complete(&volume.path, &volume.to_open()).map_err(merge_problem)?;
    let new = NewSnapshot { id: snapshot.id, name: snapshot.name.clone() };
    Ok(create_snapshot(&volume.path, &new, &volume.to_add_a_layer())?.generation)
}

/// Deletes a snapshot of a volume that is not served, and merges the layers that are not needed any
/// more. Returns the generation of its descriptor.
fn delete_and_merge(volume: &Volume, snapshot: SnapshotId) -> Result<u64, Problem> {
    let mut generation = volume.descriptor.generation;
    complete(&volume.path, &volume.to_open()).map_err(merge_problem)?;
    if volume.has(snapshot) {
        generation = delete_snapshot(&volume.path, snapshot, &volume.to_open())?.generation;
    }
    let (stop, mut report) = (AtomicBool::new(false), |_| {});
    loop {
        let mut progress = Transferred { stop: &stop, report: &mut report };
        let options = OpenOptions { least_generation: generation, ..volume.to_open() };
        let merged = merge_next(&volume.path, &options, &mut progress);
        match merged.map_err(merge_problem)? {
            Some(merged) => generation = merged.descriptor.generation,
            None => return Ok(generation),
        }
    }
}

/// Has the process that serves a volume delete a snapshot. Returns the generation of its
/// descriptor, if it had the snapshot.
fn delete_served(volume: &Volume, snapshot: SnapshotId) -> Result<Option<u64>, Problem> {
    let Some(found) = volume.descriptor.snapshot(snapshot) else { return Ok(None) };
    let failed = |error: ControlError| Problem::new(error.code(), error.to_string());
    let client = Client::connect_to(&volume.path, Peer::ThisProcess).map_err(failed)?;
    let not_served = || Problem::new("not_exposed", format!("{} of the VM is not served now", volume.name));
    let request =
        Request::DeleteSnapshot { name: found.name.clone(), least_generation: volume.descriptor.generation };
    match client.ok_or_else(not_served)?.ask(request, SNAPSHOT_WITHIN).map_err(failed)? {
        Answer::SnapshotDeleted { generation, .. } => Ok(Some(generation)),
        other => Err(failed(ControlError::of_answer(&volume.path, other))),
    }
}

pub(crate) fn merge_problem(error: MergeError) -> Problem {
    match error {
        MergeError::Datastore(error) => error.into(),
        other => Problem::new("merge", other.to_string()),
    }
}
