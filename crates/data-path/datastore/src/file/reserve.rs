//! Space that is kept for a volume's next descriptors, so that a volume can be resized or re-keyed
//! where guests have filled everything.
//!
//! It is in files beside the descriptor, `descriptor.spare-0` and on, with space and without
//! content. A descriptor that finds no room is written into one of them, which then becomes that
//! descriptor: no block and no inode are needed, and nobody else can take the space in between.
//! That is why it is not one reserve for the whole datastore: what is given back there can be taken
//! by the next guest that waits. There are a few, because file systems give back what the last
//! descriptor took only after a while (XFS, btrfs). They are filled up again as soon as there is
//! room.
//!
//! Deleting needs no reserve: a file system can always remove a file, and the layers are emptied
//! before the name goes where it can do no more than that ([`super::delete`]).

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::directory::{DESCRIPTOR, VolumeDirectory, system};
use super::error::DatastoreError;
use super::head::VolumeHead;
use super::open::Access;

/// How the names of the files start that have the space.
const SPARE_PREFIX: &str = "descriptor.spare-";

/// Descriptors that can be replaced one after the other while nothing is given back.
const SPARES: usize = 4;

/// The least that each of them has: four times the descriptor of a volume of one layer. A long one
/// gets twice its length.
const SPARE_BYTES_MIN: u64 = 8 << 10;

/// Space is counted in these.
const PAGE_BYTES: u64 = 4096;

/// Whether a file of a volume's directory is one of those that have the space.
pub(super) fn is_spare(name: &str) -> bool {
    spare_names().any(|spare| spare == name)
}

/// The names of all that there can be.
pub(super) fn spare_names() -> impl Iterator<Item = String> {
    (0..SPARES).map(|number| format!("{SPARE_PREFIX}{number}"))
}

/// What is left of a volume's datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that this process may still take.
    pub available_bytes: u64,
    /// Bytes that are kept for the volume's next descriptors.
    pub reserved_bytes: u64,
}

impl VolumeDirectory {
    /// Writes a new descriptor, durably, into space that is kept for one; says under which name. It
    /// becomes the descriptor by a rename over the old one, for which a directory needs no room.
    pub(super) fn write_into_spare(&self, encoded: &[u8]) -> Result<String, Errno> {
        // With nothing kept there is no room, and that is what is to be said.
        let spare = spare_names().find(|name| self.spare_bytes(name) >= encoded.len() as u64);
        let spare = spare.ok_or(Errno::NOSPC)?;
        let file = self.file(&spare, OFlags::WRONLY)?;
        file.write_at(0, encoded)?;
        file.set_length(encoded.len() as u64)?;
        file.sync()?;
        Ok(spare)
    }

    /// Keeps space for descriptors that are twice as long as the present one, of
    /// `descriptor_bytes`. Where there is none now, it is tried again with the next descriptor, and
    /// when there is room.
    pub(super) fn fill_spares(&self, descriptor_bytes: u64) -> Result<(), Errno> {
        let wanted_bytes = SPARE_BYTES_MIN.max(2 * descriptor_bytes).next_multiple_of(PAGE_BYTES);
        for name in spare_names().filter(|name| self.spare_bytes(name) < wanted_bytes) {
            let file = self.file(&name, OFlags::WRONLY | OFlags::CREATE)?;
            file.allocate(0, wanted_bytes).inspect_err(|_| {
                // Less is no help, and some file systems keep what they found.
                let _ = self.handle.remove(&name);
            })?;
        }
        Ok(())
    }

    /// The space of one that is there.
    fn spare_bytes(&self, name: &str) -> u64 {
        self.handle.allocated_bytes(name).unwrap_or(0)
    }
}

impl VolumeHead {
    /// What is left of the datastore.
    pub fn room(&self) -> Result<Room, DatastoreError> {
        let available_bytes = self.directory.file_system()?.available_bytes;
        let reserved_bytes = spare_names().map(|name| self.directory.spare_bytes(&name)).sum();
        Ok(Room { available_bytes, reserved_bytes })
    }

    /// Fills up what is kept for the next descriptors, where there is room. A volume that was made
    /// by an earlier version has nothing yet.
    pub fn fill_reserve(&self) -> Result<(), DatastoreError> {
        if self.access != Access::ReadWrite {
            return Ok(());
        }
        let descriptor = self.directory.file(DESCRIPTOR, OFlags::RDONLY).and_then(|file| file.length());
        let filled = descriptor.and_then(|bytes| self.directory.fill_spares(bytes));
        filled.map_err(system("keep space in", &self.directory.path))
    }
}
