//! Moves a disk's volume to another datastore, with its snapshots: here of a VM that is off, and in
//! [`running`] of one that runs.
//!
//! ```text
//! copy     an earlier copy loses the volume's name -> the copy is complete, durable, and has the name
//! (inventory: the disk is there)
//! take     vm.json names the new place -> the former volume is deleted
//! abandon  the copy loses the volume's name -> it is removed
//! switch   of a VM whose host was lost in one: is the volume at its new place?
//! ```
//!
//! A copy that no order names is never used, whatever is in it: the next one compares each block
//! with the volume. The former volume is deleted only if the one at the new place has its id and a
//! higher generation, and its key vouches for both.

pub mod running;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use strongroom_datastore::file::storage::is_gone;
use strongroom_datastore::file::{
    DatastoreError, RelocateOptions, RelocateProgress, authenticated, cancel_relocation, describe,
    remove_former, withdraw,
};
use strongroom_host::protocol::{
    Disk, DiskMove, MoveStep, Problem, Progress, ProgressUnit, VmSpec, VolumeFacts,
};
use strongroom_host::vm_directory::VmRecord;
use strongroom_host::volume_facts::facts;
use strongroom_keys::Kek;
use strongroom_types::VolumeId;
use strongroom_worker::{MergeError, copy_volume};

use crate::disks::{attest, no_such_disk};
use crate::keys::VmKeys;
use crate::own_volume::{LOCK_WAIT, protection};
use crate::rekey::reencryption::Watch;
use crate::snapshots::merge_problem;
use crate::volumes::VolumeError;

/// Does one step. Returns the facts about the VM's volumes. An error of `tell` ends a copy.
///
/// # Errors
/// If the key is unavailable, a volume is in use, damaged or older than the known one, or a
/// datastore cannot be written. Each step can be repeated.
pub fn step(
    keys: &VmKeys,
    vm: &VmSpec,
    moved: &DiskMove,
    mut tell: impl FnMut(Progress) -> Result<(), Problem>,
) -> Result<Vec<VolumeFacts>, Problem> {
    let disk = vm.disk(&moved.disk).ok_or_else(|| no_such_disk(vm, &moved.disk))?;
    let places = Places::of(keys, vm, disk, moved).map_err(|error| error.problem())?;
    match moved.step {
        MoveStep::Copy | MoveStep::CopyServed => {
            // The next hostd's job may have done it while this one waited for the VM.
            tell(Progress::new(0, 0, ProgressUnit::Bytes))?;
            VmRecord::read_of(&vm.directory(), vm.id)?.snapshots.check_whole(&vm.name)?;
            places.copy(&mut tell)?;
            facts(&moved.before(vm))
        }
        MoveStep::Take => {
            let after = moved.after(vm);
            let facts = facts(&after)?;
            VmRecord::change(vm, |record| attest(keys, record, &after.with_facts(&facts)))?;
            places.remove_former()?;
            Ok(facts)
        }
        MoveStep::Switch => match places.has_arrived()? {
            true => facts(&moved.after(vm)),
            false => {
                let message = format!("{} of VM {} is where it was", disk.name, vm.name);
                Err(Problem::new(STAYS, message))
            }
        },
        MoveStep::Abandon => {
            places.remove_copy()?;
            facts(&moved.before(vm))
        }
    }
}

/// Takes the name of a copy back whose switch was not decided: a supervisor that died may have
/// given it. Only then the disk is served where it was.
///
/// # Errors
/// If a copy has the name and keeps it. Nobody may write to the volume at its former place then.
pub fn take_name_back(keys: &VmKeys, vm: &VmSpec, disk: &Disk, moved: &DiskMove) -> Result<(), VolumeError> {
    Ok(Places::of(keys, vm, disk, moved)?.take_name_back()?)
}

/// The code of a problem: the volume is where it was.
pub const STAYS: &str = "stays";

/// A volume that is moved.
struct Places<'a> {
    disk: &'a Disk,
    from: PathBuf,
    to: PathBuf,
    volume: VolumeId,
    kek: Option<Arc<Kek>>,
}

impl<'a> Places<'a> {
    /// The paths of a disk's volume, and its key.
    fn of(keys: &VmKeys, vm: &VmSpec, disk: &'a Disk, moved: &DiskMove) -> Result<Self, VolumeError> {
        let from = moved.before(vm).volume_path(&disk.name);
        let to = moved.after(vm).volume_path(&disk.name);
        // After the decision only the new one has to be there.
        let there = if moved.step == MoveStep::Take { &to } else { &from };
        let descriptor = describe(there)?.descriptor;
        descriptor.expect_volume(there, disk.volume)?;
        let kek = keys
            .hold_for(&disk.key, Some(&descriptor))
            .map_err(|error| VolumeError::Key { volume: there.clone(), error })?;
        Ok(Self { disk, from, to, volume: descriptor.volume, kek })
    }

    fn options(&self, least_generation: u64) -> RelocateOptions<'_> {
        let protection = protection(self.kek.as_deref());
        RelocateOptions { protection, lock_wait: LOCK_WAIT, least_generation }
    }

    fn copy(&self, tell: &mut dyn FnMut(Progress) -> Result<(), Problem>) -> Result<(), Problem> {
        withdraw(&self.to, self.volume, &self.options(0))?;
        let stop = AtomicBool::new(false);
        let mut watch = Watch::new(&stop);
        let mut report = |progress: RelocateProgress| {
            let total = progress.done_bytes + progress.left_bytes;
            watch.look(|| tell(Progress::new(progress.done_bytes, total, ProgressUnit::Bytes)).err());
        };
        let options = self.options(self.disk.least_generation);
        let copied = copy_volume(&self.from, &self.to, &options, &stop, &mut report);
        match (copied, watch.halted) {
            (Ok((mut relocation, _)), _) => relocation.take_place().map(drop).map_err(Problem::from),
            (Err(_), Some(problem)) => Err(problem),
            (Err(error), None) => Err(not_copied(&self.from, error)),
        }
    }

    /// Deletes the former volume, whose place is the VM's no more.
    fn remove_former(&self) -> Result<(), Problem> {
        Ok(remove_former(&self.from, &self.to, &self.options(self.disk.least_generation))?)
    }

    /// Whether the volume at the new place has its name, which it gets just before a switch is
    /// decided, and loses before the volume is used where it was.
    fn has_arrived(&self) -> Result<bool, Problem> {
        if is_gone(&self.to) {
            return Ok(false);
        }
        let protection = protection(self.kek.as_deref());
        let former = authenticated(&self.from, protection, self.disk.least_generation)?;
        let arrived = authenticated(&self.to, protection, former.generation + 1)?;
        arrived.expect_volume(&self.to, Some(self.volume))?;
        Ok(true)
    }

    fn take_name_back(&self) -> Result<(), DatastoreError> {
        match withdraw(&self.to, self.volume, &self.options(0)) {
            // It has no name there, as far as can be seen: the new place may have failed.
            Err(error) if is_gone(&self.to) => {
                tracing::warn!("{} cannot be looked at: {error}", self.to.display());
                Ok(())
            }
            withdrawn => withdrawn,
        }
    }

    fn remove_copy(&self) -> Result<(), Problem> {
        withdraw(&self.to, self.volume, &self.options(0))?;
        if is_gone(self.to.parent().unwrap_or(&self.to)) {
            return Ok(());
        }
        Ok(cancel_relocation(&self.to, self.volume, LOCK_WAIT)?)
    }
}

fn not_copied(path: &Path, error: MergeError) -> Problem {
    match error {
        MergeError::Datastore(error) => error.into(),
        error => {
            let problem = merge_problem(error);
            Problem::new("not_moved", format!("{} was not copied: {problem}", path.display()))
        }
    }
}
