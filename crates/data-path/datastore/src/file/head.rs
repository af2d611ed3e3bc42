//! The owner's side of an open volume: its directory, its descriptor, and the right to replace the
//! descriptor.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, DirEntry, OFlags, statat};
use rustix::io::Errno;
use rustix::process::geteuid;
use strongroom_types::VolumeSize;

use super::descriptor::Descriptor;
use super::directory::{VolumeDirectory, layer_name};
use super::disk::OpenLayer;
use super::error::DatastoreError;
use super::layer_files;
use super::open::{Access, Deks, OpenOptions, Protection};
use super::open_files::{open_chain_envelopes, open_layer_of};

/// The part of an open volume that stays with its owning process while another process does its
/// I/O. It holds the directory's lock: as long as it lives, no other process can open the volume
/// for writing or delete it, even if the process that does the I/O dies. It holds no key.
pub struct VolumeHead {
    pub(super) directory: VolumeDirectory,
    pub(super) descriptor: Descriptor,
    pub(super) access: Access,
}

impl VolumeHead {
    /// The volume's directory.
    pub fn path(&self) -> &Path {
        &self.directory.path
    }

    /// The authenticated descriptor.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// What the volume was opened for.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether a layer's file was removed from the volume's directory, or the directory itself was:
    /// the process that does the I/O then works on files without a name. Any other error counts as
    /// not gone. The names are those of open files, so the lookup needs no disk access.
    pub fn are_files_gone(&self) -> bool {
        let mut layers = self.descriptor.layers.iter();
        layers.any(|layer| {
            matches!(self.directory.file(&layer_name(layer.id), OFlags::RDONLY), Err(Errno::NOENT))
        })
    }

    /// The kernel's directory, if it is one, for access to other files in it.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.directory.handle.as_fd()
    }

    /// Whether the volume has files that belong to another user, which root can open nevertheless.
    /// Files that cannot be examined do not count.
    pub fn has_files_of_other_users(&self) -> bool {
        let Some(directory) = self.as_fd() else { return false };
        let ours = geteuid().as_raw();
        let is_others = |entry: &DirEntry| {
            let found = statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            entry.file_name() != c".." && found.is_ok_and(|stat| stat.st_uid != ours)
        };
        Dir::read_from(directory).is_ok_and(|entries| entries.flatten().any(|entry| is_others(&entry)))
    }

    /// Reopens and locks the layers after the process that did the I/O has died. Waits at most
    /// `lock_wait` for the last of that I/O. The descriptor is read and authenticated again. It
    /// must be that of the same volume, and no older.
    pub fn reopen(
        &mut self,
        protection: Protection<'_>,
        lock_wait: Duration,
    ) -> Result<(OpenLayer, Deks), DatastoreError> {
        let least_generation = self.descriptor.generation;
        let options = OpenOptions { protection, access: self.access, lock_wait, least_generation };
        let (descriptor, layer, deks) = open_layer_of(&self.directory, &options)?;
        if descriptor.volume != self.descriptor.volume {
            return Err(DatastoreError::Replaced {
                path: self.directory.path.clone(),
                expected: self.descriptor.volume,
                found: descriptor.volume,
            });
        }
        self.descriptor = descriptor;
        Ok((layer, deks))
    }

    /// Opens the keys of the layers again, for another process that will do the I/O.
    pub fn deks(&self, protection: Protection<'_>) -> Result<Deks, DatastoreError> {
        open_chain_envelopes(&self.directory.path, &self.descriptor, protection)
    }

    /// Grows the volume; the new space reads as zeroes. The top layer's files grow first, durably:
    /// a power cut before the descriptor is replaced leaves a file that is longer than needed,
    /// which is harmless. Then the process that does the I/O must call
    /// [`FileDisk::set_size`](super::FileDisk::set_size); until then it uses the old size.
    pub fn grow(&mut self, size: VolumeSize, protection: Protection<'_>) -> Result<(), DatastoreError> {
        let path = self.directory.path.clone();
        let from = self.descriptor.size_bytes;
        if size < from {
            return Err(DatastoreError::Shrink { path, from, to: size });
        }
        if size == from {
            return Ok(());
        }
        let mut grown = self.descriptor.clone();
        grown.size_bytes = size;
        grown.generation += 1;
        let encoded = grown.encode(&path, &protection.keks())?;
        if let Some(top) = grown.layer(grown.top) {
            layer_files::grow(&self.directory, &grown, top, from, protection)?;
        }
        self.directory.write_descriptor(&encoded)?;
        self.descriptor = grown;
        Ok(())
    }
}

impl fmt::Debug for VolumeHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeHead({}, {})", self.descriptor.volume, self.directory.path.display())
    }
}
