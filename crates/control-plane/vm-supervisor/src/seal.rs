//! Encrypts or decrypts a disk of a VM, with its snapshots: here of one that is off, in [`running`]
//! of one that runs. If it is the only disk with a key, the VM's own volumes are encrypted or
//! decrypted with it, while the VM is off.
//!
//! ```text
//! inventory: half clear -> vm.json: half clear -> each volume: the mark -> layer by layer -> no mark
//!     -> vm.json: the disk has a key, or none -> inventory: the same
//! ```
//!
//! Until the last volume is done, durably, `vm.json` and the inventory say that the disk is half
//! clear. Such a disk is served to no VM that starts, so a kill at any moment leaves no disk that a
//! VM uses in the clear without the control plane having ordered that. Both name the key all the
//! while, so a repeated request continues, in this direction or back.

pub mod running;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use strongroom_datastore::file::{
    DescribedVolume, Descriptor, Integrity, NewTags, Protection, ReencryptOptions, authenticated, describe,
};
use strongroom_host::protocol::{
    Disk, DiskBecomes, DiskChange, DiskKey, DiskKind, DiskName, OwnVolume, Problem, Progress, ProgressUnit,
    VmSpec, VolumeFacts,
};
use strongroom_host::vm_directory::VmRecord;
use strongroom_host::volume_facts::facts;
use strongroom_keys::Kek;
use strongroom_types::VolumeId;
use strongroom_worker::{ReencryptProgress, reencrypt};

use crate::disks::{attest, no_such_disk};
use crate::job::key_problem;
use crate::keys::VmKeys;
use crate::own_volume::{LOCK_WAIT, protection};
use crate::rekey::reencryption::{Watch, not_rewritten, size_of};
use crate::rekey::volumes;

/// Completes the change of a half-clear disk, and records that. Returns the facts about the VM's
/// volumes. An error of `tell` ends the job between two steps.
///
/// # Errors
/// If the key is unavailable, or a volume is damaged, older than the known one, or in use. The disk
/// is then half clear, and a repeated request continues.
pub fn complete(
    keys: &VmKeys,
    vm: &VmSpec,
    disk: &DiskName,
    mut tell: impl FnMut(Progress) -> Result<(), Problem>,
) -> Result<Vec<VolumeFacts>, Problem> {
    let mut done = DiskChange::Seal { disk: disk.clone() }.applied_to(vm)?;
    let Some(sealing) = Sealing::of(keys, vm, disk)? else { return facts(vm) };
    let volumes = sealing.volumes()?;
    let total = volumes.iter().map(|volume| volume.size_bytes).sum();
    // The next hostd's job may have done all of it while this one waited for the VM: a job whose
    // hostd is gone changes nothing.
    tell(Progress::new(0, total, ProgressUnit::Bytes))?;
    VmRecord::change(vm, |record| {
        record.snapshots.check_whole(&vm.name)?;
        attest(keys, record, vm)
    })?;
    let mut done_bytes = 0;
    for volume in volumes {
        let mut tell = |left_bytes: u64| {
            let done = done_bytes + volume.size_bytes.saturating_sub(left_bytes);
            tell(Progress::new(done, total, ProgressUnit::Bytes))
        };
        tell(volume.size_bytes)?;
        let generation = sealing.rewrite(&volume, &mut tell)?;
        done.raise_generation(&volume.name, generation);
        done_bytes += volume.size_bytes;
    }
    let facts = facts(&done)?;
    VmRecord::change(vm, |record| attest(keys, record, &done.with_facts(&facts)))?;
    Ok(facts)
}

/// The encryption or decryption of a disk.
struct Sealing<'a> {
    vm: &'a VmSpec,
    disk: &'a Disk,
    kek: Arc<Kek>,
    becomes: DiskBecomes,
}

/// A volume to encrypt or decrypt.
struct Volume {
    name: DiskName,
    path: PathBuf,
    tags: NewTags,
    size_bytes: u64,
    least_generation: u64,
}

impl<'a> Sealing<'a> {
    /// Fetches the disk's key. Returns `None` if the disk is not half clear.
    fn of(keys: &VmKeys, vm: &'a VmSpec, disk: &DiskName) -> Result<Option<Self>, Problem> {
        let disk = vm.disk(disk).ok_or_else(|| no_such_disk(vm, disk))?;
        let DiskKey::HalfClear { key, kek: expected, becomes } = &disk.key else { return Ok(None) };
        if disk.kind == DiskKind::Swap {
            let message =
                format!("{} of VM {} is a swap disk, which is made at each start", disk.name, vm.name);
            return Err(Problem::new("bad_request", message));
        }
        let kek = match becomes {
            DiskBecomes::Encrypted => keys.hold_to_seal(key),
            DiskBecomes::Clear => keys.hold(key),
        };
        let kek = kek.map_err(key_problem)?;
        if let Some(expected) = expected {
            kek.expect_id(*expected).map_err(key_problem)?;
        }
        Ok(Some(Self { vm, disk, kek, becomes: *becomes }))
    }

    /// Returns the volumes that are encrypted or decrypted, the disk's first. Each is the right
    /// one, as far as its descriptor says that before it is authenticated.
    fn volumes(&self) -> Result<Vec<Volume>, Problem> {
        let Self { vm, disk, .. } = self;
        let path = vm.volume_path(&disk.name);
        let found = describe(&path)?;
        found.descriptor.expect_volume(&path, disk.volume)?;
        let id = found.descriptor.volume;
        let mut ids: Vec<VolumeId> = vec![id];
        let mut volumes = vec![self.volume(disk.name.clone(), found, tags(disk), disk.least_generation)];
        if !vm.has_own_volumes_like(&disk.name)? {
            return Ok(volumes);
        }
        let known = vm.known_volumes();
        ids.extend(vm.disks.iter().filter_map(|other| other.volume).filter(|other| *other != id));
        for found in self::volumes(vm)? {
            let Some(name) = own_name(&found.path) else { continue };
            let known = known.iter().find(|known| known.name == name);
            found.descriptor.expect_volume(&found.path, known.map(|known| known.volume))?;
            // A copy of a disk in the place of a dump would be decrypted.
            if ids.contains(&found.descriptor.volume) {
                let message = format!("{} is a copy of another volume of the VM", found.path.display());
                return Err(Problem::new("other_volume", message).with_next_step("remove it"));
            }
            ids.push(found.descriptor.volume);
            let least_generation = known.map_or(0, |known| known.least_generation);
            volumes.push(self.volume(name, found, NewTags::None, least_generation));
        }
        Ok(volumes)
    }

    fn volume(&self, name: DiskName, found: DescribedVolume, tags: NewTags, least_generation: u64) -> Volume {
        let size_bytes = if self.is_done(&found.descriptor) { 0 } else { size_of(&found) };
        Volume { name, path: found.path, tags, size_bytes, least_generation }
    }

    /// Whether a volume is what it is to be, as its descriptor says, which is not authenticated.
    fn is_done(&self, descriptor: &Descriptor) -> bool {
        let is_encrypted = descriptor.encryption.is_some();
        descriptor.reencrypting.is_none() && is_encrypted == (self.becomes == DiskBecomes::Encrypted)
    }

    /// What a volume is under before the change and after it.
    fn ends(&self) -> (Protection<'_>, Protection<'_>) {
        let (sealed, clear) = (protection(Some(self.kek.as_ref())), protection(None));
        match self.becomes {
            DiskBecomes::Encrypted => (clear, sealed),
            DiskBecomes::Clear => (sealed, clear),
        }
    }

    /// Rewrites a volume, or continues with that, unless it is done. `tell` takes the bytes that
    /// are left. Returns the generation of its descriptor.
    fn rewrite(
        &self,
        volume: &Volume,
        tell: &mut dyn FnMut(u64) -> Result<(), Problem>,
    ) -> Result<u64, Problem> {
        let Volume { path, tags, least_generation, .. } = volume;
        let (from, to) = self.ends();
        if self.is_done(&describe(path)?.descriptor) {
            return Ok(authenticated(path, to, *least_generation)?.generation);
        }
        let stop = AtomicBool::new(false);
        let mut watch = Watch::new(&stop);
        let mut report = |progress: ReencryptProgress| watch.look(|| tell(progress.left_bytes).err());
        let (tags, lock_wait, least_generation) = (*tags, LOCK_WAIT, *least_generation);
        let options = ReencryptOptions { from, to, tags, lock_wait, least_generation };
        let done = reencrypt(path, &options, &stop, &mut report);
        match (done, watch.halted) {
            (Ok(done), _) => Ok(done.descriptor.generation),
            (Err(_), Some(problem)) => Err(problem),
            (Err(error), None) => Err(not_rewritten(path, error)),
        }
    }
}

/// How the rewritten layers of a disk are tagged.
pub fn tags(disk: &Disk) -> NewTags {
    disk.integrity.then_some(Integrity::NEW).map_or(NewTags::None, NewTags::By)
}

/// The name of the VM's own volume at this path, if it is one.
fn own_name(path: &Path) -> Option<DiskName> {
    let name = path.file_name()?.to_str()?;
    OwnVolume::named(name)?;
    name.parse().ok()
}
