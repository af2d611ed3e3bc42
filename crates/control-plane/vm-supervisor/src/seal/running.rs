//! Encrypts or decrypts a disk while its VM runs. The VM's own volumes stay as they are: the first
//! encrypted disk, or the last one, is encrypted or decrypted while the VM is off.
//!
//! ```text
//! vm.json: half clear -> the VM's state: half clear -> the mark and a new top of the other sort
//!     -> the VM's state: changed over -> layer by layer -> no mark
//!     -> vm.json: the disk has a key, or none -> the VM's state: the same
//! ```
//!
//! Only this job allows the thread that serves the volume to change its sort
//! ([`ServedSeal::allow`]). A supervisor that takes over has the VM's state, and serves the disk as
//! that says (`volumes.rs`): of the old sort only before the state says half clear. If the VM ends
//! meanwhile, the job is continued as that of a VM that is off.

use std::sync::atomic::AtomicBool;

use strongroom_datastore::file::{DescribedVolume, ReencryptOptions, authenticated, describe};
use strongroom_host::attestation;
use strongroom_host::protocol::{
    Disk, DiskBecomes, DiskChange, DiskName, Problem, Progress, ProgressUnit, VmSpec,
};
use strongroom_host::vm_directory::VmRecord;
use strongroom_host::volume_facts::facts;
use strongroom_worker::control::Peer;
use strongroom_worker::supervise::{SealChange, ServedSeal, VolumeSeal};
use strongroom_worker::{
    ReencryptProgress, ServedError, ServedVolume, Throttle, begin_served, reencrypt_served,
};

use super::{Sealing, tags};
use crate::disks::attest;
use crate::keys::VmKeys;
use crate::own_volume::LOCK_WAIT;
use crate::rekey::reencryption::{Watch, merge_new_top, not_rewritten, size_of};

/// A step that must be recorded in the VM's state before the job continues.
#[derive(Debug)]
pub enum SealStep {
    /// The disk is half clear, and from the next change-over on written as what it becomes.
    HalfClear {
        /// The disk.
        disk: Box<Disk>,
    },
    /// The half-clear disk is written as what it becomes.
    ChangedOver {
        /// The disk.
        disk: DiskName,
        /// The generation of its descriptor, as the process that serves it knows it.
        generation: u64,
    },
}

/// The job of a disk.
pub struct RunningSeal<'a> {
    /// The VM's keys.
    pub keys: &'a VmKeys,
    /// The VM, with the half-clear disk.
    pub vm: &'a VmSpec,
    /// The disk.
    pub disk: &'a DiskName,
    /// The seal of its volume.
    pub seal: &'a ServedSeal,
    /// Whether the job was cancelled; asked about twice a second.
    pub is_cancelled: &'a dyn Fn() -> bool,
    /// Has a step recorded in the VM's state.
    pub record: &'a dyn Fn(SealStep) -> Result<(), Problem>,
}

impl RunningSeal<'_> {
    /// Completes the change of the disk. Returns the VM's configuration then. An error of `tell`
    /// ends the job between two steps.
    ///
    /// # Errors
    /// If the key is unavailable, or the volume is damaged, older than the known one, or not served
    /// any more. The disk is then half clear, and a repeated request continues.
    pub fn complete(&self, tell: &mut dyn FnMut(Progress) -> Result<(), Problem>) -> Result<VmSpec, Problem> {
        let Self { keys, vm, disk, .. } = *self;
        refuse_with_own_volumes(vm, disk)?;
        let mut done = DiskChange::Seal { disk: disk.clone() }.applied_to(vm)?;
        let Some(sealing) = Sealing::of(keys, vm, disk)? else { return Ok(vm.clone()) };
        let key = sealing.disk.key.provider_key();
        let kept = key.map(|key| keys.keep(key));
        let found = describe(&vm.volume_path(disk))?;
        found.descriptor.expect_volume(&found.path, sealing.disk.volume)?;
        VmRecord::change(vm, |record| {
            record.snapshots.check_whole(&vm.name)?;
            attest(keys, record, vm)
        })?;
        (self.record)(SealStep::HalfClear { disk: Box::new(sealing.disk.clone()) })?;
        let generation = self.rewrite(&sealing, &found, tell)?;
        done.raise_generation(disk, generation);
        let facts = facts(&done)?;
        let done = done.with_facts(&facts);
        VmRecord::change(vm, |record| attest(keys, record, &done))?;
        drop(kept);
        if let Some(key) = key.filter(|key| !attestation::keys(&done).contains(key)) {
            keys.forget(key);
        }
        Ok(done)
    }

    /// Rewrites the volume, unless it is done. Returns the generation of its descriptor.
    fn rewrite(
        &self,
        sealing: &Sealing<'_>,
        found: &DescribedVolume,
        tell: &mut dyn FnMut(Progress) -> Result<(), Problem>,
    ) -> Result<u64, Problem> {
        let (path, disk) = (&found.path, sealing.disk);
        let (from, to) = sealing.ends();
        let (is_done, change) = match sealing.becomes {
            DiskBecomes::Encrypted => (VolumeSeal::Sealed, SealChange::Encrypted(sealing.kek.id())),
            DiskBecomes::Clear => (VolumeSeal::Clear, SealChange::Clear),
        };
        if self.seal.now() == is_done {
            return Ok(authenticated(path, to, disk.least_generation)?.generation);
        }
        let (tags, lock_wait, least_generation) = (tags(disk), LOCK_WAIT, disk.least_generation);
        let options = ReencryptOptions { from, to, tags, lock_wait, least_generation };
        let served = ServedVolume { path, supervisor: Peer::ThisProcess };
        let (stop, total) = (AtomicBool::new(false), size_of(found));
        let mut watch = Watch::new(&stop);
        let mut report = |progress: ReencryptProgress| {
            watch.look(|| {
                let done = total.saturating_sub(progress.left_bytes);
                let told = tell(Progress::new(done, total, ProgressUnit::Bytes));
                told.err().or_else(|| (self.is_cancelled)().then(cancelled))
            });
        };
        let allowed = Allowed::of(self.seal, change);
        let begun = begin_served(served, &options, &stop, &mut report);
        let done = match begun {
            Ok(generation) => {
                (self.record)(SealStep::ChangedOver { disk: disk.name.clone(), generation })?;
                reencrypt_served(served, &options, Throttle::default(), &stop, &mut report)
            }
            Err(error) => Err(error),
        };
        drop(allowed);
        match (done, watch.halted) {
            (Ok(done), _) => {
                merge_new_top(path, disk.least_generation);
                Ok(done.descriptor.generation)
            }
            (Err(_), Some(problem)) => Err(problem),
            (Err(error), None) => {
                // A VM that ends is continued when it is off.
                tell(Progress::new(0, total, ProgressUnit::Bytes))?;
                Err(match error {
                    ServedError::Rewrite(error) => not_rewritten(path, error),
                    ServedError::Control(error) => Problem::new(error.code(), error.to_string()),
                })
            }
        }
    }
}

/// A change that is allowed to the thread that serves a volume.
struct Allowed<'a>(&'a ServedSeal);

impl<'a> Allowed<'a> {
    fn of(seal: &'a ServedSeal, change: SealChange) -> Self {
        seal.allow(Some(change));
        Self(seal)
    }
}

impl Drop for Allowed<'_> {
    fn drop(&mut self) {
        self.0.allow(None);
    }
}

/// Refuses a disk with which the VM's own volumes would be encrypted or decrypted.
///
/// # Errors
/// If it is the VM's only disk with a key.
pub fn refuse_with_own_volumes(vm: &VmSpec, disk: &DiskName) -> Result<(), Problem> {
    if !vm.has_own_volumes_like(disk)? {
        return Ok(());
    }
    let message = format!(
        "the own volumes of VM {} are encrypted or decrypted together with {disk}, which is done while it is off",
        vm.name
    );
    Err(Problem::new("running", message).with_next_step("stop the VM first"))
}

fn cancelled() -> Problem {
    Problem::new("cancelled", "the encryption or decryption was cancelled")
}
