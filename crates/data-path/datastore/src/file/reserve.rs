//! Reserves space for a volume's next descriptors, so that a volume can be resized or re-keyed on a
//! datastore that guests have filled.
//!
//! The space is in files beside the descriptor, `descriptor.spare-0` and so on, which have space
//! but no content. A descriptor that finds no room is written into one of them, which then becomes
//! the descriptor: no new block or inode is needed, and no other process can take the space in
//! between. A single reserve for the whole datastore would not do: the next waiting guest could
//! take the space that it frees. There are several files, because some file systems free the last
//! descriptor's space only after a while (XFS, btrfs). They are filled again as soon as there is
//! room.
//!
//! Deleting needs no reserve: a file system can always remove a file. If it cannot even rename, the
//! layers are emptied first ([`super::delete`]).

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::directory::{DESCRIPTOR, VolumeDirectory, system};
use super::error::DatastoreError;
use super::head::VolumeHead;
use super::open::Access;

/// The prefix of the names of reserve files.
const SPARE_PREFIX: &str = "descriptor.spare-";

/// How often the descriptor can be replaced in a row while the file system frees nothing.
const SPARES: usize = 4;

/// The least size of a reserve file: four times the descriptor of a volume of one layer. For a long
/// descriptor it is twice its length.
const SPARE_BYTES_MIN: u64 = 8 << 10;

/// The unit in which space is reserved.
const PAGE_BYTES: u64 = 4096;

/// Whether a file of a volume's directory is a reserve file.
pub(super) fn is_spare(name: &str) -> bool {
    spare_names().any(|spare| spare == name)
}

/// The names of all possible reserve files.
pub(super) fn spare_names() -> impl Iterator<Item = String> {
    (0..SPARES).map(|number| format!("{SPARE_PREFIX}{number}"))
}

/// The room that is left on a volume's datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that this process may still allocate.
    pub available_bytes: u64,
    /// Bytes that are reserved for the volume's next descriptors.
    pub reserved_bytes: u64,
}

impl VolumeDirectory {
    /// Durably writes a new descriptor into reserved space, and returns the file's name. It becomes
    /// the descriptor by a rename over the old one, for which a directory needs no room.
    pub(super) fn write_into_spare(&self, encoded: &[u8]) -> Result<String, Errno> {
        // Without a reserve there is no room, so that is the error.
        let spare = spare_names().find(|name| self.spare_bytes(name) >= encoded.len() as u64);
        let spare = spare.ok_or(Errno::NOSPC)?;
        let file = self.file(&spare, OFlags::WRONLY)?;
        file.write_at(0, encoded)?;
        file.set_length(encoded.len() as u64)?;
        file.sync()?;
        Ok(spare)
    }

    /// Reserves space for descriptors of twice the present length, `descriptor_bytes`. If there is
    /// no room now, it is tried again with the next descriptor, and when there is room.
    pub(super) fn fill_spares(&self, descriptor_bytes: u64) -> Result<(), Errno> {
        let wanted_bytes = SPARE_BYTES_MIN.max(2 * descriptor_bytes).next_multiple_of(PAGE_BYTES);
        for name in spare_names().filter(|name| self.spare_bytes(name) < wanted_bytes) {
            let file = self.file(&name, OFlags::WRONLY | OFlags::CREATE)?;
            file.allocate(0, wanted_bytes).inspect_err(|_| {
                // A partial reserve is no help, and some file systems keep the part that they
                // allocated.
                let _ = self.handle.remove(&name);
            })?;
        }
        Ok(())
    }

    /// The allocated bytes of a reserve file; 0 if it does not exist.
    fn spare_bytes(&self, name: &str) -> u64 {
        self.handle.allocated_bytes(name).unwrap_or(0)
    }
}

impl VolumeHead {
    /// The room that is left on the datastore.
    pub fn room(&self) -> Result<Room, DatastoreError> {
        let available_bytes = self.directory.file_system()?.available_bytes;
        let reserved_bytes = spare_names().map(|name| self.directory.spare_bytes(&name)).sum();
        Ok(Room { available_bytes, reserved_bytes })
    }

    /// Fills the reserve for the next descriptors, if there is room. A volume that was made by an
    /// earlier version has none yet.
    pub fn fill_reserve(&self) -> Result<(), DatastoreError> {
        if self.access != Access::ReadWrite {
            return Ok(());
        }
        let descriptor = self.directory.file(DESCRIPTOR, OFlags::RDONLY).and_then(|file| file.length());
        let filled = descriptor.and_then(|bytes| self.directory.fill_spares(bytes));
        filled.map_err(system("keep space in", &self.directory.path))
    }
}
