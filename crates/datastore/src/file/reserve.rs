//! Space that is kept for a volume's next descriptor, so that a volume can be resized or re-keyed where guests have filled
//! everything.
//!
//! It is a file beside the descriptor, [`DESCRIPTOR_SPARE`], with space and without content. A descriptor that finds no room
//! is written into it, and it becomes that descriptor: no block and no inode are needed, and nobody else can take the space in
//! between. That is why it is not one reserve for the whole datastore: what is given back there can be taken by the next guest
//! that waits. It is filled up again as soon as there is room.
//!
//! Deleting needs no reserve: a file system can always remove a file, and the layers are emptied before the name goes where
//! it can do no more than that ([`super::delete`]).

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::directory::{DESCRIPTOR, DESCRIPTOR_NEW, VolumeDirectory, system};
use super::error::DatastoreError;
use super::head::VolumeHead;
use super::open::Access;

/// The file that has the space.
pub(super) const DESCRIPTOR_SPARE: &str = "descriptor.spare";

/// The least that is kept: ten times the descriptor of a volume of one layer. A long one gets twice its length.
const SPARE_BYTES_MIN: u64 = 16 << 10;

/// Space is counted in these.
const PAGE_BYTES: u64 = 4096;

/// What is left of a volume's datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that this process may still take.
    pub available_bytes: u64,
    /// Bytes that are kept for the volume's next descriptor.
    pub reserved_bytes: u64,
}

impl VolumeDirectory {
    /// Writes a new descriptor, durably, into the space that is kept for one, under the name of one on its way.
    pub(super) fn write_into_spare(&self, encoded: &[u8]) -> Result<(), Errno> {
        self.handle.rename(DESCRIPTOR_SPARE, DESCRIPTOR_NEW).map_err(|errno| match errno {
            // Nothing is kept: there is no room, and that is what is to be said.
            Errno::NOENT => Errno::NOSPC,
            errno => errno,
        })?;
        let file = self.file(DESCRIPTOR_NEW, OFlags::WRONLY)?;
        file.write_at(0, encoded)?;
        file.set_length(encoded.len() as u64)?;
        file.sync()
    }

    /// Keeps space for a descriptor that is twice as long as the present one, of `descriptor_bytes`. Where there is none now,
    /// it is tried again with the next descriptor, and when there is room.
    pub(super) fn fill_spare(&self, descriptor_bytes: usize) -> Result<(), Errno> {
        let wanted_bytes = SPARE_BYTES_MIN.max(2 * descriptor_bytes as u64).next_multiple_of(PAGE_BYTES);
        if self.spare_bytes() >= wanted_bytes {
            return Ok(());
        }
        let file = self.file(DESCRIPTOR_SPARE, OFlags::WRONLY | OFlags::CREATE)?;
        file.allocate(0, wanted_bytes).inspect_err(|_| {
            // Less than a whole one is no help, and some file systems keep what they found.
            let _ = self.handle.remove(DESCRIPTOR_SPARE);
        })
    }

    fn spare_bytes(&self) -> u64 {
        self.handle.allocated_bytes(DESCRIPTOR_SPARE).unwrap_or(0)
    }
}

impl VolumeHead {
    /// What is left of the datastore.
    pub fn room(&self) -> Result<Room, DatastoreError> {
        let available_bytes = self.directory.file_system()?.available_bytes;
        Ok(Room { available_bytes, reserved_bytes: self.directory.spare_bytes() })
    }

    /// Fills up what is kept for the next descriptor, where there is room. A volume that was made by an earlier version has
    /// nothing yet.
    pub fn fill_reserve(&self) -> Result<(), DatastoreError> {
        if self.access != Access::ReadWrite {
            return Ok(());
        }
        let descriptor = self.directory.file(DESCRIPTOR, OFlags::RDONLY).and_then(|file| file.length());
        let filled = descriptor.and_then(|bytes| self.directory.fill_spare(bytes as usize));
        filled.map_err(system("keep space in", &self.directory.path))
    }
}
