//! Adds, removes and grows disks in the VM's directory, for a VM that runs or is off. Encrypting
//! and decrypting them is in `seal.rs`.
//!
//! ```text
//! add     vm.json names it -> its volume is made (-> it is plugged in) -> vm.json has its key
//! remove  (the guest lets go -> its volume is closed) -> its volume is deleted -> vm.json without it
//! resize  its volume grows (-> the guest is told) -> vm.json has its size
//! limit   vm.json has its limits (-> its workers keep them)
//! move    another directory has its volume -> vm.json has its place: `disk_move.rs`
//! bind    hostd has moved its volume here -> vm.json names it (-> it is plugged in)
//! unbind  (the guest lets go -> its volume is closed) -> vm.json without it -> hostd moves its volume
//! ```
//!
//! So a volume that `vm.json` does not name was not made here, and is left alone. After a kill, a
//! repeated request continues.

use std::sync::Arc;
use std::time::Duration;

use strongroom_datastore::file::storage::is_gone;
use strongroom_datastore::file::{Access, OpenOptions, authenticated, delete, describe, open};
use strongroom_host::attestation;
use strongroom_host::protocol::{
    Disk, DiskChange, DiskKind, DiskName, Problem, Progress, VmSpec, VolumeFacts,
};
use strongroom_host::vm_directory::VmRecord;
use strongroom_host::volume_facts::facts;
use strongroom_types::VolumeSize;
use strongroom_worker::control::{Answer, Client, Peer, Request};

use crate::disk_move;
use crate::job::{Makers, key_problem, staged_path};
use crate::keys::VmKeys;
use crate::own_volume::{LOCK_WAIT, protection};
use crate::seal;
use crate::volumes::VolumeError;

/// Timeout for allocating a thick volume's new space, on a slow file system.
const GROWS_WITHIN: Duration = Duration::from_secs(600);

/// Changes a disk of a VM that is off. Returns the facts about its volumes. An error of `tell` ends
/// an encryption or decryption.
///
/// # Errors
/// Also if the VM is suspended, or a key is unavailable.
pub fn change(
    keys: Arc<VmKeys>,
    vm: &VmSpec,
    change: &DiskChange,
    tell: impl FnMut(Progress) -> Result<(), Problem>,
) -> Result<Vec<VolumeFacts>, Problem> {
    if record(vm)?.suspended.is_some() {
        let message = format!("VM {} is suspended: its memory fits it as it is", vm.name);
        let next = "start it and shut it down, or start it with --discard-memory";
        return Err(Problem::new("suspended", message).with_next_step(next));
    }
    match change {
        DiskChange::Add { disk } => drop(make(keys, vm, disk)?),
        DiskChange::Remove { disk } => remove(&keys, vm, disk)?,
        DiskChange::Bind { disk, .. } => bind(&keys, vm, disk)?,
        DiskChange::Unbind { disk, .. } => unbind(&keys, vm, disk)?,
        DiskChange::Limit { .. } => note(&keys, vm, change)?,
        DiskChange::Seal { disk } => return seal::complete(&keys, vm, disk, tell),
        DiskChange::Move(moved) => return disk_move::step(&keys, vm, moved, tell),
        DiskChange::Resize { disk, size_bytes } => {
            let found = vm.disk(disk).ok_or_else(|| no_such_disk(vm, disk))?;
            // A swap disk is made at the start.
            let mut grown = vm.clone();
            if found.kind == DiskKind::Data {
                let generation = grow(&keys, vm, found, *size_bytes)?;
                grown.raise_generation(disk, generation);
            }
            note_size(&keys, &grown, disk, *size_bytes)?;
            return facts(&change.applied_to(&grown)?);
        }
    }
    facts(&change.applied_to(vm)?)
}

/// Records a disk in `vm.json`, and makes its volume unless it exists. Returns the disk with its
/// key.
///
/// # Errors
/// Also if another volume has its name.
pub fn make(keys: Arc<VmKeys>, vm: &VmSpec, disk: &Disk) -> Result<Disk, Problem> {
    let path = vm.volume_path(&disk.name);
    let mut spec = VmRecord::change(vm, |record| {
        if record.spec.disk(&disk.name).is_none() && !is_gone(&path) {
            let message = format!("{} is there, and is no disk of VM {}", path.display(), vm.name);
            let next = format!("see what it is and delete it: `strongroom volume delete {}`", path.display());
            return Err(Problem::new("volume_exists", message).with_next_step(next));
        }
        // The entry in `vm.json` is replaced; it has no influence on the new volume.
        record.spec = DiskChange::Add { disk: Box::new(disk.clone()) }.applied_to(vm)?;
        Ok(record.spec.clone())
    })?;
    let mut makers = Makers::with(keys);
    let named = spec.disks.iter_mut().find(|known| known.name == disk.name);
    let named = named.ok_or_else(|| no_such_disk(vm, &disk.name))?;
    if named.kind == DiskKind::Data && is_gone(&path) {
        makers.make(&path, named)?;
    }
    let made = named.clone();
    let facts = facts(&spec)?;
    VmRecord::change(vm, |record| makers.attest(record, spec.with_facts(&facts)))?;
    Ok(made)
}

/// Deletes a disk's volume, which is no longer served, and removes the disk from `vm.json`.
///
/// # Errors
/// If the VM needs the disk, or the volume is in use.
pub fn remove(keys: &VmKeys, vm: &VmSpec, disk: &DiskName) -> Result<(), Problem> {
    let record = record(vm)?;
    let without = DiskChange::Remove { disk: disk.clone() }.applied_to(vm)?;
    if record.spec.disk(disk).is_none() && vm.disk(disk).is_none() {
        return Ok(());
    }
    record.snapshots.check_unneeded(disk)?;
    let place = vm.volume_path(disk);
    for path in [staged_path(&place), place] {
        if !is_gone(&path) {
            delete(&path, LOCK_WAIT)?;
        }
    }
    VmRecord::change(vm, |record| attest(keys, record, &without))
}

/// Records a volume that hostd has moved into the VM's directory as a disk in `vm.json`. The disk's
/// key vouches for it before that.
///
/// # Errors
/// If it is another volume, an older one or a damaged one, or a key is unavailable.
pub fn bind(keys: &VmKeys, vm: &VmSpec, disk: &Disk) -> Result<(), Problem> {
    let path = vm.volume_path(&disk.name);
    let volume = disk.volume.ok_or_else(|| Problem::new("bad_request", "no volume is named"))?;
    let kek = keys
        .hold_for(&disk.key, Some(&describe(&path)?.descriptor))
        .map_err(|error| VolumeError::Key { volume: path.clone(), error }.problem())?;
    authenticated(&path, protection(kek.as_deref()), disk.least_generation)?
        .expect_volume(&path, Some(volume))?;
    let with = DiskChange::Add { disk: Box::new(disk.clone()) }.applied_to(vm)?;
    VmRecord::change(vm, |record| attest(keys, record, &with))
}

/// Removes a disk, whose volume is no longer served, from `vm.json`. The volume stays where it is
/// until hostd moves it.
///
/// # Errors
/// If the VM needs the disk.
pub fn unbind(keys: &VmKeys, vm: &VmSpec, disk: &DiskName) -> Result<(), Problem> {
    let without = DiskChange::Remove { disk: disk.clone() }.applied_to(vm)?;
    VmRecord::change(vm, |record| {
        record.snapshots.check_unneeded(disk)?;
        attest(keys, record, &without)
    })?;
    let left = vm.disk(disk).and_then(|disk| disk.key.provider_key());
    if let Some(left) = left.filter(|left| !attestation::keys(&without).contains(left)) {
        keys.forget(left);
    }
    Ok(())
}

/// Records a disk's size in `vm.json`.
///
/// # Errors
/// If it cannot be written, or a key of the VM is unavailable.
pub fn note_size(keys: &VmKeys, vm: &VmSpec, disk: &DiskName, size_bytes: VolumeSize) -> Result<(), Problem> {
    note(keys, vm, &DiskChange::Resize { disk: disk.clone(), size_bytes })
}

/// Records a change of the VM's configuration in `vm.json`.
///
/// # Errors
/// If it cannot be written, or a key of the VM is unavailable.
pub fn note(keys: &VmKeys, vm: &VmSpec, change: &DiskChange) -> Result<(), Problem> {
    let changed = change.applied_to(vm)?;
    VmRecord::change(vm, |record| attest(keys, record, &changed))
}

pub fn attest(keys: &VmKeys, record: &mut VmRecord, spec: &VmSpec) -> Result<(), Problem> {
    let attested = record.become_attested(spec, |key, what| keys.attest(key, what));
    attested.map_err(key_problem)
}

/// Grows a volume that is not served. Returns the generation of its descriptor.
fn grow(keys: &VmKeys, vm: &VmSpec, disk: &Disk, size: VolumeSize) -> Result<u64, Problem> {
    let path = vm.volume_path(&disk.name);
    let descriptor = describe(&path)?.descriptor;
    let kek = keys
        .hold_for(&disk.key, Some(&descriptor))
        .map_err(|error| VolumeError::Key { volume: path.clone(), error }.problem())?;
    let protection = || protection(kek.as_deref());
    let options = OpenOptions {
        protection: protection(),
        access: Access::ReadWrite,
        lock_wait: LOCK_WAIT,
        least_generation: disk.least_generation,
    };
    let mut volume = open(&path, &options)?;
    let expected = volume.descriptor().expect_volume(&path, disk.volume);
    expected?;
    if volume.descriptor().size_bytes < size {
        volume.grow(size, protection())?;
    }
    Ok(volume.descriptor().generation)
}

/// Makes the process that serves a volume grow it and notify the guest. Returns the generation of
/// its descriptor, as that process knows it; the datastore could have another one by now.
///
/// # Errors
/// If it fails.
pub fn grow_served(vm: &VmSpec, disk: &Disk, size_bytes: VolumeSize) -> Result<u64, Problem> {
    let path = vm.volume_path(&disk.name);
    let failed = |error: &dyn std::fmt::Display| {
        Problem::new("resize", format!("{} does not grow: {error}", path.display()))
    };
    let client = Client::connect_to(&path, Peer::ThisProcess).map_err(|error| failed(&error))?;
    let client = client.ok_or_else(|| failed(&"nobody serves it now"))?;
    let request = Request::Resize { size_bytes, least_generation: disk.least_generation };
    match client.ask(request, GROWS_WITHIN) {
        Ok(Answer::Resized { generation, .. }) => Ok(generation),
        Ok(Answer::Refused { code, message }) => Err(Problem::new(&code, message)),
        Ok(other) => Err(failed(&format!("its supervisor answered {other:?}"))),
        Err(error) => Err(failed(&error)),
    }
}

fn record(vm: &VmSpec) -> Result<VmRecord, Problem> {
    VmRecord::read_of(&vm.directory(), vm.id).map_err(Problem::from)
}

pub fn no_such_disk(vm: &VmSpec, disk: &DiskName) -> Problem {
    Problem::new("no_such_disk", format!("VM {} has no disk {disk}", vm.name))
}
