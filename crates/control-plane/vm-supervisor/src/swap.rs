//! Swap disks: the swapped-out data of a guest is useful only until the VM is off.
//!
//! So a swap disk is a new volume at each start, with a new data key, and is deleted when the VM is
//! off. If a power cut leaves one, the next start deletes it. A supervisor that takes over a
//! running QEMU keeps it. A suspended VM keeps its swap disks until its guest resumes or its memory
//! is discarded.
//!
//! A snapshot with memory has the swap disks of that instant. Then the volume stays as long as the
//! snapshot: what the guest has swapped out since is a layer of its own, which is given up with its
//! data key instead of the volume.

use std::sync::Arc;

use strongroom_datastore::file::storage::is_gone;
use strongroom_datastore::file::{
    Access, AddLayerOptions, OpenOptions, authenticated, delete, describe, revert,
};
use strongroom_host::orders::RunTask;
use strongroom_host::protocol::{Disk, DiskKind, VmSpec};
use strongroom_host::vm_directory::VmRecord;
use strongroom_keys::Kek;
use strongroom_worker::complete;
use uuid::Uuid;

use crate::keys::VmKeys;
use crate::own_volume::{LOCK_WAIT, OpenOwnVolume, OwnVolumeError, create_with, protection};
use crate::volumes::VolumeError;

/// The x86 page size, the unit of a swap area.
const PAGE_BYTES: u64 = 4096;
/// The offset of the header in the first page, after room for a boot sector.
const HEADER_AT: usize = 1024;
/// The only version of the header.
const HEADER_VERSION: u32 = 1;
/// The signature at the end of the first page.
const SIGNATURE: &[u8; 10] = b"SWAPSPACE2";
/// The longest label, in bytes.
const LABEL_BYTES: usize = 16;

/// Recreates a swap disk with an empty swap area.
///
/// # Errors
/// Also if its key is unavailable.
pub fn renew(task: &RunTask, disk: &Disk, keys: &VmKeys) -> Result<(), VolumeError> {
    let spec = &task.spec;
    if is_suspended(spec) && !task.how.discard_memory {
        return Ok(());
    }
    let path = spec.volume_path(&disk.name);
    let area = area(disk.size_bytes.bytes(), disk.name.as_str(), Uuid::new_v4());
    match give_up(spec, disk, keys)? {
        Left::Nothing => {
            // The disk is recreated, so no descriptor decides the key.
            let kek = keys.hold_for(&disk.key, None).map_err(OwnVolumeError::from)?;
            Ok(create_with(&path, disk.size_bytes, kek.as_deref(), &area)?)
        }
        Left::OfSnapshots(kek) => {
            let mut volume = OpenOwnVolume::open(&path, kek.as_deref())?;
            volume.write_at(0, &area)?;
            Ok(volume.close()?)
        }
    }
}

/// Deletes the swap disks of a VM that is off, but what its snapshots have of them.
///
/// # Errors
/// The first error.
pub fn remove_all(spec: &VmSpec, keys: &VmKeys) -> Result<(), OwnVolumeError> {
    if is_suspended(spec) {
        return Ok(());
    }
    let swaps = spec.disks.iter().filter(|disk| disk.kind == DiskKind::Swap);
    swaps.map(|disk| give_up(spec, disk, keys)).try_for_each(|left| left.map(drop))
}

/// What is left of a swap disk without what its guest has swapped out.
enum Left {
    /// Nothing.
    Nothing,
    /// The volume, with an empty top: snapshots with memory have the other layers. With its key.
    OfSnapshots(Option<Arc<Kek>>),
}

/// Gives up what the guest has swapped out.
fn give_up(spec: &VmSpec, disk: &Disk, keys: &VmKeys) -> Result<Left, OwnVolumeError> {
    let path = spec.volume_path(&disk.name);
    if is_gone(&path) {
        return Ok(Left::Nothing);
    }
    let described = describe(&path).ok().filter(|described| !described.descriptor.snapshots.is_empty());
    let Some(described) = described else {
        delete(&path, LOCK_WAIT)?;
        return Ok(Left::Nothing);
    };
    let kek = keys.hold_for(&disk.key, Some(&described.descriptor))?;
    let protection = protection(kek.as_deref());
    let (access, lock_wait) = (Access::ReadWrite, LOCK_WAIT);
    complete(&path, &OpenOptions { protection, access, lock_wait, least_generation: 0 })?;
    let descriptor = authenticated(&path, protection, 0)?;
    if let Some(snapshot) = descriptor.snapshots.last() {
        let least_generation = descriptor.generation;
        let options = AddLayerOptions { protection, log_bytes: None, lock_wait, least_generation };
        revert(&path, snapshot.id, None, &options)?;
    }
    Ok(Left::OfSnapshots(kek))
}

/// Whether a memory that refers to swapped-out data is kept. `true` if the VM's directory cannot be
/// read.
fn is_suspended(spec: &VmSpec) -> bool {
    VmRecord::read_of(&spec.directory(), spec.id).map_or(true, |record| record.suspended.is_some())
}

/// The first page of an empty swap area (Linux `include/linux/swap.h`, `union swap_header`), as
/// mkswap makes it.
fn area(size_bytes: u64, label: &str, id: Uuid) -> Vec<u8> {
    // Pages beyond the 32-bit count stay unused.
    let last_page = u32::try_from(size_bytes / PAGE_BYTES).unwrap_or(u32::MAX).saturating_sub(1);
    let mut page = vec![0; PAGE_BYTES as usize];
    let label = &label.as_bytes()[..label.len().min(LABEL_BYTES)];
    let fields: [&[u8]; 5] =
        [&HEADER_VERSION.to_le_bytes(), &last_page.to_le_bytes(), &[0; 4], id.as_bytes(), label];
    let header = fields.concat();
    page[HEADER_AT..HEADER_AT + header.len()].copy_from_slice(&header);
    let end = page.len();
    page[end - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    page
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_swap_area_is_what_mkswap_makes() {
        const BYTES: u64 = (40 << 20) + 512;
        let id = Uuid::from_bytes([0x5a; 16]);
        let ours = area(BYTES, "swap0", id);
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(BYTES).unwrap();
        let made = Command::new("/usr/sbin/mkswap")
            .args(["--label", "swap0", "--uuid", &id.to_string()])
            .arg(file.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let theirs = std::fs::read(file.path()).unwrap();
        assert!(ours == theirs[..4096]);
    }
}
